//! Direct access by one GPU's kernels to another GPU's memory.

use std::ffi::{c_int, c_uint};

use virtual_gpu::engine::ContextHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::pointer::Out;
use crate::types::{Context, Device};

/// `CU_DEVICE_P2P_ATTRIBUTE_…`: performance rank, access, atomics, arrays, and partial atomics only.
const ATTRIBUTES: std::ops::RangeInclusive<c_uint> = 1..=5;

/// `CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED` and `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`. NVLink has both.
const OF_LINKS: std::ops::RangeInclusive<c_uint> = 2..=3;

/// `cuDeviceCanAccessPeer`
pub(crate) fn can_access(to: Out<c_int>, device: Device, peer: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let (device, peer) = (engine.check_device(device)?, engine.check_device(peer)?);
    to.give(engine.can_access_peer(device, peer).into())
}

/// `cuDeviceGetP2PAttribute`
pub(crate) fn attribute(to: Out<c_int>, attribute: c_uint, from: Device, peer: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let (device, peer) = (engine.check_device(from)?, engine.check_device(peer)?);
    if device == peer {
        return Err(Error::new(CudaStatus::InvalidDevice, format!("both devices are {from}")));
    }
    if !ATTRIBUTES.contains(&attribute) {
        return Err(Error::new(
            CudaStatus::InvalidValue,
            format!("{attribute} is not a peer-to-peer attribute"),
        ));
    }
    to.give((OF_LINKS.contains(&attribute) && engine.can_access_peer(device, peer)).into())
}

/// `cuCtxEnablePeerAccess`
pub(crate) fn enable(peer: Context, flags: c_uint) -> CudaResult<()> {
    let engine = engine::get()?;
    let peer = ContextHandle(peer as u64);
    engine.current_device()?;
    engine.check_context(peer)?;
    if flags != 0 {
        return Err(Error::new(CudaStatus::InvalidValue, format!("the flags must be 0, not {flags}")));
    }
    engine.enable_peer_access(peer)
}

/// `cuCtxDisablePeerAccess`
pub(crate) fn disable(peer: Context) -> CudaResult<()> {
    engine::get()?.disable_peer_access(ContextHandle(peer as u64))
}
