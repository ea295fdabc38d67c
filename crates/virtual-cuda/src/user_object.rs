//! The bodies of the functions for user objects.

use std::ffi::{c_int, c_uint, c_void};

use virtual_gpu::engine::UserObjectHandle;
use virtual_gpu_core::status::{CudaResult, invalid};

use crate::graph::Graph;
use crate::graph_node::graph;
use crate::host::HostFunction;
use crate::pointer::Out;
use crate::types::handle;
use crate::{engine, host};

/// `CUuserObject`
pub type UserObject = *mut c_void;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which is required.
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`
const MOVES: c_uint = 1;

fn object(object: UserObject) -> UserObjectHandle {
    UserObjectHandle(object as u64)
}

/// Checks a number of references.
fn references(count: c_uint, caller: &str) -> CudaResult<u64> {
    match c_int::try_from(count) {
        Ok(1..) => Ok(u64::from(count)),
        _ => Err(invalid(format!("{caller}: {count} is not a number of references (1 to {})", c_int::MAX))),
    }
}

pub(crate) fn create(
    to: Out<UserObject>,
    data: *mut c_void,
    destroy: HostFunction,
    count: c_uint,
    flags: c_uint,
) -> CudaResult<()> {
    if flags != NO_DESTRUCTOR_SYNC {
        let message = format!(
            "cuUserObjectCreate: the flags must be CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, not {flags:#x}"
        );
        return Err(invalid(message));
    }
    to.check("cuUserObjectCreate: the result pointer")?;
    let count = references(count, "cuUserObjectCreate")?;
    let destroy = host::function("cuUserObjectCreate", destroy, data)?;
    to.give(handle(engine::get()?.create_user_object(destroy, count).0))
}

pub(crate) fn retain(of: UserObject, count: c_uint) -> CudaResult<()> {
    engine::get()?.retain_user_object(object(of), references(count, "cuUserObjectRetain")?)
}

pub(crate) fn release(of: UserObject, count: c_uint) -> CudaResult<()> {
    engine::get()?.release_user_object(object(of), references(count, "cuUserObjectRelease")?)
}

pub(crate) fn give(to: Graph, of: UserObject, count: c_uint, flags: c_uint) -> CudaResult<()> {
    if flags & !MOVES != 0 {
        return Err(invalid(format!("cuGraphRetainUserObject: {flags:#x} contains unknown flags")));
    }
    let count = references(count, "cuGraphRetainUserObject")?;
    engine::get()?.give_user_object(graph(to), object(of), count, flags == MOVES)
}

pub(crate) fn take(from: Graph, of: UserObject, count: c_uint) -> CudaResult<()> {
    let count = references(count, "cuGraphReleaseUserObject")?;
    engine::get()?.take_user_object(graph(from), object(of), count)
}
