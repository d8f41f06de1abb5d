"""report.html of real small runs, opened in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

pytest.importorskip("continuum")
pytest.importorskip("pytorch_grad_cam")

from aanets_plugin import ConfigurationError
from aanets_plugin.baselines import LUCIR
from aanets_plugin.experiments import AANets, arms_of, compare, scenarios
from aanets_plugin.experiments.command import main
from aanets_plugin.experiments.report.page import write_page
from tests.experiments.run_setup import TRAINING, Memory, digits, network, rows_of

SECTIONS = {
    "short": "In short",
    "accuracy": "Accuracy",
    "forgetting": "Which classes are forgotten when",
    "groups": "Old, new and first classes",
    "confusion": "Confusion of old and new classes",
    "alpha": "Aggregation weights α",
    "branches": "What each branch knows",
    "grad-cam": "Where each branch looks",
    "cost": "Cost",
    "commands": "Commands and settings",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """LUCIR, plain and with AANets, two seeds."""
    output = tmp_path_factory.mktemp("comparison")
    train, test = scenarios(digits(), base_classes=6, phases=2)
    compare(
        train,
        test,
        network,
        arms_of(LUCIR(), AANets()),
        output=output,
        seeds=[0, 1],
        memory=Memory(per_class=5),
        training=TRAINING,
        progress=False,
        command="aanets run lucir <here>",
    )
    return output


class Headings(HTMLParser):
    """The ids of sections and the tags that were not closed."""

    def __init__(self):
        super().__init__()
        self.ids, self.open = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "section":
            self.ids.append(dict(attrs)["id"])
        if tag in ("section", "figure", "table", "details", "pre", "svg"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("section", "figure", "table", "details", "pre", "svg"):
            assert self.open.pop() == tag


def sections(page):
    parser = Headings()
    parser.feed(page.read_text(encoding="utf-8"))
    assert not parser.open
    return parser.ids


def test_a_comparison_has_every_section(folder):
    assert sections(folder / "report.html") == list(SECTIONS)


def test_the_first_sentence_has_the_measured_difference(folder):
    learned, plain = (
        [rows_of(folder / f"{arm}-{seed}") for seed in (0, 1)] for arm in ("learned", "plain")
    )
    means = [sum(run[-1]["head"]["average"] for run in runs) / 2 for runs in (learned, plain)]
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert f"AANets, learned α: {means[0]:.2f}% average incremental accuracy by head" in text
    assert (
        f"against {means[1]:.2f}% of the plain network: {means[0] - means[1]:+.2f} points" in text
    )


def test_confusion_counts_every_test_sample(folder):
    last = rows_of(folder / "plain-0")[-1]["head"]
    assert [sum(row) for row in last["confusion"]] == [60, 20, 20]
    by_phase = [100 * last["confusion"][i][i] / n for i, n in enumerate((60, 20, 20))]
    assert all(own >= hit for own, hit in zip(by_phase, last["by_phase"], strict=True)), (
        "the right class is of the right phase"
    )


def test_a_plain_run_has_no_section_about_alpha_and_one_with_aanets_has(folder):
    without = {"alpha", "branches", "grad-cam"}
    assert sections(folder / "plain-0" / "report.html") == [s for s in SECTIONS if s not in without]
    assert sections(folder / "learned-0" / "report.html") == list(SECTIONS)


def test_branches_and_cost_are_those_of_the_network(folder):
    branches = json.loads((folder / "learned-0" / "branches.json").read_text(encoding="utf-8"))
    assert branches["samples"] == 100
    names = [row["name"] for row in branches["rows"][:3]]
    assert names == ["α as learned", "plastic alone", "stable alone"]
    measured = rows_of(folder / "learned-0")[-1]
    assert branches["rows"][0]["accuracy"] == pytest.approx(measured["head"]["all"])
    assert branches["rows"][0]["by_phase"] == pytest.approx(measured["head"]["by_phase"])
    costs = [
        json.loads((folder / f"{arm}-0" / "cost.json").read_text()) for arm in ("plain", "learned")
    ]
    assert costs[0]["flops"] < costs[1]["flops"] < 2.1 * costs[0]["flops"]


def test_what_comes_from_outside_is_escaped(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "aanets run lucir &lt;here&gt;" in text
    assert "<here>" not in text


def test_the_command_writes_the_page_anew_with_the_same_bytes(folder, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("report.html", "checkpoint"))
    main(["report", str(copy)])
    assert str(copy / "report.html") in capsys.readouterr().out
    assert (copy / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_unfinished_and_older_runs_are_read_as_far_as_they_go(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    metrics = copy / "learned-1" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    for name in ("about.json", "cost.json", "branches.json", "grad_cam.png"):
        for file in copy.glob(f"*/{name}"):
            file.unlink()
    page = write_page(copy)
    assert sections(page) == [s for s in SECTIONS if s not in ("branches", "grad-cam", "cost")]
    assert "1 more runs in this folder are not finished" in page.read_text(encoding="utf-8")


def test_a_folder_without_a_run_and_a_damaged_one_are_refused(folder, tmp_path):
    with pytest.raises(ConfigurationError, match="holds no finished run"):
        write_page(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder / "plain-0", copy)
    (copy / "cost.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"cost\.json cannot be read"):
        write_page(copy)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(folder, scheme):
    """Everything is there, nothing is fetched, the console is empty, and clicks work."""
    sync_api = pytest.importorskip("playwright.sync_api")
    address = (folder / "report.html").as_uri()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        try:
            page = browser.new_page(color_scheme=scheme, viewport={"width": 360, "height": 640})
            requests, messages = [], []
            page.on("request", lambda request: requests.append(request.url))
            page.on("console", lambda message: messages.append(message.text))
            page.on("pageerror", lambda error: messages.append(str(error)))
            page.goto(address)
            assert page.locator("h2").all_inner_texts() == list(SECTIONS.values())
            for key, title in SECTIONS.items():
                page.locator("nav").get_by_text(title, exact=True).click()
                assert page.url.endswith(f"#{key}")
            for details in page.locator("details").all():
                details.locator("summary").click()
                assert details.get_attribute("open") is not None
            body = page.evaluate("[document.body.scrollWidth, window.innerWidth]")
            assert body[0] <= body[1], "nothing sticks out on a phone"
            colors = page.evaluate(
                "(() => { const body = getComputedStyle(document.body);"
                " const text = document.querySelector('figure svg text');"
                " return [body.color, body.backgroundColor, getComputedStyle(text).fill]; })()"
            )
            ink, paper, figure = (sum(map(int, re.findall(r"\d+", c)[:3])) for c in colors)
            assert (ink > paper) == (scheme == "dark")
            assert figure == ink, "figures are readable on either page"
            assert page.locator("figure svg").count() >= 7
            assert page.locator("figure img").evaluate_all(
                "(all) => all.every((i) => i.naturalWidth)"
            )
        finally:
            browser.close()
    assert {url for url in requests if not url.startswith("data:")} == {address} | {
        url for url in requests if url.startswith(address + "#")
    }
    assert messages == []


def test_the_first_paragraph_says_what_each_branch_knows(folder):
    known = {"stable": [], "plastic": []}
    for seed in (0, 1):
        rows = json.loads((folder / f"learned-{seed}" / "branches.json").read_text())["rows"]
        for branch, own in known.items():
            own += [row["by_phase"] for row in rows if row["name"] == f"{branch} alone"]
    words = [
        f"the {branch} branch knows {(a[0] + b[0]) / 2:.0f}% of the first classes and "
        f"{(a[-1] + b[-1]) / 2:.0f}% of the newest"
        for branch, (a, b) in known.items()
    ]
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert f"Alone, {'; '.join(words)}." in text
