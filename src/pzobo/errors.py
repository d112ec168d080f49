"""What can go wrong? In the user's words: what was found, what was expected, what to do."""

from __future__ import annotations


class PzoboError(Exception):
    """The base of everything that this library raises on purpose."""


class StructureError(PzoboError, ValueError):
    """A tree, shape or dtype is not the one that was expected."""


class ScalarLossError(PzoboError, ValueError):
    """A loss did not return one floating-point number."""


class SmoothingError(PzoboError, ValueError):
    """The smoothing parameter mu is not positive, or so small that a path difference is rounding noise."""


class DirectionsError(PzoboError, ValueError):
    """The number of directions is not a positive whole number."""


class OptionError(PzoboError, ValueError):
    """Another option has a value that makes no sense."""


class NonFiniteError(PzoboError, ArithmeticError):
    """The outer variables hold NaN or infinity."""


class DivergenceError(PzoboError, ArithmeticError):
    """The inner path left the finite numbers."""


class CurvatureError(PzoboError, ArithmeticError):
    """The inner Hessian is not positive definite where a method needs it to be."""


class BatchError(PzoboError, ValueError):
    """`batch=` or `batches=` is missing, given twice, or of the wrong length."""


class RequirementError(PzoboError, TypeError):
    """A Jacobian needs something that this solver or loss does not give."""


class CompileError(PzoboError, RuntimeError):
    """`compile=True` did not work for this loss."""


class CompileWarning(UserWarning):
    """`compile=True` does nothing for this loss: it runs as without."""


class NoResponseWarning(UserWarning):
    """y did not change with x, or no more than by rounding."""


class AuditWarning(UserWarning):
    """A hypergradient does not agree with what an audit measured."""


class AuditError(PzoboError, ArithmeticError):
    """The same, with `audit="error"`."""


class RoughResponseError(PzoboError, ValueError):
    """A response changes by jumps, or not at all, so that differences of it mean nothing."""


class SearchWarning(UserWarning):
    """A search for hyperparameters may not be worth what it says."""


class StaleError(PzoboError, RuntimeError):
    """Something was changed in place, or replaced, before it was used."""


class RunFolderError(PzoboError, FileExistsError):
    """A folder holds another run, or something that is not a run."""


class CheckpointError(PzoboError, ValueError):
    """A checkpoint is damaged, or belongs to something else."""


class DamagedFileError(PzoboError, ValueError):
    """A file that this library wrote is damaged, or of another form."""


class TooLargeError(PzoboError, MemoryError):
    """What was asked for does not fit into the memory of this machine."""


class MissingExtraError(PzoboError, ImportError):
    """A library that belongs to an extra of the package is not installed."""


class RankError(PzoboError, RuntimeError):
    """Another process of the same run failed, or was lost."""


class DriftError(PzoboError, ArithmeticError):
    """The processes of a run, which must hold the same numbers, do not."""


class BlackBoxError(PzoboError, RuntimeError):
    """A process that ran a black box was killed."""
