"""All deliberately broken versions of the protocol."""

from __future__ import annotations

from tests.simulation.flow_mutants import FLOW_MUTANTS
from tests.simulation.joint_mutants import JOINT_MUTANTS
from tests.simulation.mutation import Mutant
from tests.simulation.table_mutants import CLAIM_MUTANTS, UNIT_MUTANTS

MUTANTS: tuple[Mutant, ...] = (*UNIT_MUTANTS, *CLAIM_MUTANTS, *FLOW_MUTANTS, *JOINT_MUTANTS)

__all__ = ["MUTANTS", "Mutant"]
