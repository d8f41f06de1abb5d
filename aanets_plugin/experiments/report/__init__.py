"""report.html: what a run or a comparison showed, on one page without links to the outside."""
