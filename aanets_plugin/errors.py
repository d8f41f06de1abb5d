"""The errors that this package raises.

A message quotes what was given, says what is allowed and what to do, and ends with a period.
"""


class AANetError(Exception):
    """Base class of all errors of this package."""


class UnsupportedModelError(AANetError):
    """The operation does not work on this network."""


class NotAModuleError(UnsupportedModelError, TypeError):
    """The model is not a torch.nn.Module."""


class AlreadyConvertedError(AANetError):
    """The network has adaptive levels already."""


class ConfigurationError(AANetError, ValueError):
    """An argument has an invalid value."""


class PhaseError(AANetError):
    """A phase method was called in the wrong order."""


class NonFiniteLossError(AANetError):
    """The loss is NaN or infinite."""


class FileWriteError(AANetError, OSError):
    """A file could not be written, for example because the disk is full."""


class ProcessError(AANetError):
    """Another process of the same run has failed."""
