"""What can go wrong, as classes: every message quotes what was given and says what to do."""


class AANetError(Exception):
    """The parent of every error this package raises on purpose."""


class UnsupportedModelError(AANetError):
    """The network has no shape that the requested operation can work on."""


class AlreadyConvertedError(AANetError):
    """The network, or a part of it, is an AANet already."""


class ConfigurationError(AANetError, ValueError):
    """An argument has a value that cannot be used."""


class PhaseError(AANetError):
    """A phase was begun, ended or used out of order."""


class NonFiniteLossError(AANetError):
    """The loss that α should learn from is NaN or infinite."""
