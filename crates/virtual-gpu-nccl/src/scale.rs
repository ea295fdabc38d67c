//! Reduction operators created by the program: each rank's data is multiplied by that rank's scalar before it is
//! summed.

use super::Nccl;
use virtual_gpu_core::handle::CommHandle;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};
use virtual_gpu_machine::reduction::{DataType, Operator};

/// The first `ncclRedOp_t` value that stands for an operator created by the program.
const FIRST: u32 = Operator::PreMulSum as u32;

/// The scalar of an operator that the program created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The scalar's bytes, read from host memory when the operator was created.
    Value([u8; 8]),
    /// The scalar's device address, read when a collective runs.
    At(u64),
}

/// The operators that a rank has created, by index; the operator at index 0 has the value [`FIRST`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Scales(Vec<Option<(DataType, Scale)>>);

impl Nccl {
    /// Implements `ncclRedOpCreatePreMulSum`: creates an operator on this rank for elements of type `data_type`. The
    /// first operator gets the value `ncclNumOps`. A destroyed operator's value is reused for the next operator.
    pub fn create_operator(&self, handle: CommHandle, data_type: DataType, scale: Scale) -> NcclResult<u32> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let Scales(slots) = &mut guard.nccl.communicator_mut(comm)?.ranks[rank].scales;
        let slot = slots.iter().position(Option::is_none).unwrap_or_else(|| {
            slots.push(None);
            slots.len() - 1
        });
        slots[slot] = Some((data_type, scale));
        Ok(FIRST + slot as u32)
    }

    /// Implements `ncclRedOpDestroy`. Calls that were made with the operator still use it.
    pub fn destroy_operator(&self, handle: CommHandle, operator: u32) -> NcclResult<()> {
        let bad = |message: String| Err(Error::new(NcclStatus::InvalidArgument, message));
        if operator < FIRST {
            return bad(format!("ncclRedOpDestroy: op {operator} is one of NCCL's built-in operators"));
        }
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.member(handle)?;
        let Scales(slots) = &mut guard.nccl.communicator_mut(comm)?.ranks[rank].scales;
        let slot = slots.get_mut((operator - FIRST) as usize);
        match slot.and_then(Option::take) {
            Some(_) => Ok(()),
            None => bad(format!("ncclRedOpDestroy: op {operator} is unknown to this communicator")),
        }
    }

    /// Resolves an `ncclRedOp_t` in a call to `function` with elements of type `data_type`.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if there is no such operator, or if it was created for another type.
    pub fn operator(
        &self,
        function: &str,
        handle: CommHandle,
        operator: u32,
        data_type: DataType,
    ) -> NcclResult<(Operator, Option<Scale>)> {
        let bad = |message: String| Err(Error::new(NcclStatus::InvalidArgument, message));
        if let Some(operator) = Operator::from_value(operator) {
            return Ok((operator, None));
        }
        let guard = self.lock();
        let (comm, rank) = guard.nccl.member(handle)?;
        let Scales(slots) = &guard.nccl.communicator(comm)?.ranks[rank].scales;
        let slot = operator.checked_sub(FIRST).and_then(|slot| *slots.get(slot as usize)?);
        match slot {
            Some((of, scale)) if of == data_type => Ok((Operator::PreMulSum, Some(scale))),
            Some((of, _)) => {
                bad(format!("{function}: op {operator} was created for datatype {of}, not for {data_type}"))
            }
            None => {
                bad(format!("{function}: op {operator} is not a reduction operator of this communicator"))
            }
        }
    }
}
