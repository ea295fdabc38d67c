//! Reduction operators that a program makes: each rank's data is multiplied by a scalar of its own, and summed.

use super::communicator::CommHandle;
use super::reduce::{DataType, Operator};
use crate::engine::Engine;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// Values of `ncclRedOp_t` from here on are operators that were made.
const FIRST: u32 = Operator::PreMulSum as u32;

/// The scalar of an operator that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Its bytes, taken from the host when the operator was made.
    Value([u8; 8]),
    /// Its device address, read when a collective runs.
    At(u64),
}

/// Operators that a rank has made, by their place from [`FIRST`] on.
#[derive(Clone, Debug, Default)]
pub(super) struct Scales(Vec<Option<(DataType, Scale)>>);

impl Engine {
    /// `ncclRedOpCreatePreMulSum`: an operator of this rank, for elements of `data_type`. The first one has the value of
    /// `ncclNumOps`, one that has been destroyed gives its value to the next.
    pub fn nccl_create_operator(
        &self,
        comm: CommHandle,
        data_type: DataType,
        scale: Scale,
    ) -> NcclResult<u32> {
        let mut state = self.state();
        let (clique, rank) = state.nccl.ready_member(comm)?;
        let Some(entry) = state.nccl.cliques.get_mut(&clique) else { return Ok(FIRST) };
        let Scales(slots) = &mut entry.ranks[rank].scales;
        let slot = slots.iter().position(Option::is_none).unwrap_or_else(|| {
            slots.push(None);
            slots.len() - 1
        });
        slots[slot] = Some((data_type, scale));
        Ok(FIRST + slot as u32)
    }

    /// `ncclRedOpDestroy`. Calls that were made with it still use it.
    pub fn nccl_destroy_operator(&self, comm: CommHandle, operator: u32) -> NcclResult<()> {
        let bad = |message: String| Err(Error::new(NcclStatus::InvalidArgument, message));
        if operator < FIRST {
            return bad(format!("ncclRedOpDestroy: op {operator} is one of NCCL's own"));
        }
        let mut state = self.state();
        let (clique, rank) = state.nccl.member(comm)?;
        let entry = state.nccl.cliques.get_mut(&clique);
        let slot = entry.and_then(|entry| entry.ranks[rank].scales.0.get_mut((operator - FIRST) as usize));
        match slot.and_then(Option::take) {
            Some(_) => Ok(()),
            None => bad(format!("ncclRedOpDestroy: op {operator} is unknown to this communicator")),
        }
    }

    /// What a `ncclRedOp_t` means in a call of `function` on elements of `data_type`.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no such operator, or it was made for another type.
    pub fn nccl_operator(
        &self,
        function: &str,
        comm: CommHandle,
        operator: u32,
        data_type: DataType,
    ) -> NcclResult<(Operator, Option<Scale>)> {
        let bad = |message: String| Err(Error::new(NcclStatus::InvalidArgument, message));
        if let Some(operator) = Operator::from_value(operator) {
            return Ok((operator, None));
        }
        let state = self.state();
        let (clique, rank) = state.nccl.member(comm)?;
        let Scales(slots) = &state.nccl.cliques[&clique].ranks[rank].scales;
        let slot = operator.checked_sub(FIRST).and_then(|slot| *slots.get(slot as usize)?);
        match slot {
            Some((of, scale)) if of == data_type => Ok((Operator::PreMulSum, Some(scale))),
            Some((of, _)) => {
                bad(format!("{function}: op {operator} was made for datatype {of}, and not for {data_type}"))
            }
            None => bad(format!("{function}: op {operator} is no reduction operator of this communicator")),
        }
    }
}
