"""Which methods carry a memory from step to step? Single-loop, penalty and variance-reduced ones, one file each."""

from pzobo.algorithms.algorithm import Algorithm, Memory, SecondOrder, Step
from pzobo.algorithms.amigo import AmIGO
from pzobo.algorithms.bome import BOME
from pzobo.algorithms.bsa import BSA
from pzobo.algorithms.bvfim import BVFIM
from pzobo.algorithms.delta_stn import DeltaSTN
from pzobo.algorithms.f2sa import F2SA
from pzobo.algorithms.fde_hbo import FdeHBO
from pzobo.algorithms.fsla import FSLA
from pzobo.algorithms.iaptt import IAPTT
from pzobo.algorithms.ma_soba import MASOBA
from pzobo.algorithms.meha import MEHA
from pzobo.algorithms.mrbo import MRBO
from pzobo.algorithms.oracles import Curved, Oracles, Slopes
from pzobo.algorithms.rates import Decay
from pzobo.algorithms.saba import SABA
from pzobo.algorithms.sama import SAMA
from pzobo.algorithms.soba import SOBA
from pzobo.algorithms.srba import SRBA
from pzobo.algorithms.stable import STABLE
from pzobo.algorithms.stn import STN
from pzobo.algorithms.sustain import SUSTAIN
from pzobo.algorithms.ttsa import TTSA
from pzobo.algorithms.vector import Vector
from pzobo.algorithms.vrbo import VRBO

__all__ = [
    "BOME",
    "BSA",
    "BVFIM",
    "F2SA",
    "FSLA",
    "IAPTT",
    "MASOBA",
    "MEHA",
    "MRBO",
    "SABA",
    "SAMA",
    "SOBA",
    "SRBA",
    "STABLE",
    "STN",
    "SUSTAIN",
    "TTSA",
    "VRBO",
    "Algorithm",
    "AmIGO",
    "Curved",
    "Decay",
    "DeltaSTN",
    "FdeHBO",
    "Memory",
    "Oracles",
    "SecondOrder",
    "Slopes",
    "Step",
    "Vector",
]
