//! Arrays and copies.

use cudarc::driver::sys::{self, CUDA_ARRAY_DESCRIPTOR, CUDA_MEMCPY2D, CUarray_format, CUmemorytype};

use super::{Array, BYTE, CUBEMAP, FLOAT, GATHER, Gpu, LAYERED, SURFACE, host};
use crate::raw::address;

pub(super) fn kinds() -> anyhow::Result<()> {
    let _gpu = Gpu::new()?;
    use CUarray_format::*;
    let formats = [
        BYTE,
        CU_AD_FORMAT_UNSIGNED_INT16,
        CU_AD_FORMAT_UNSIGNED_INT32,
        CU_AD_FORMAT_SIGNED_INT8,
        CU_AD_FORMAT_SIGNED_INT16,
        CU_AD_FORMAT_SIGNED_INT32,
        CU_AD_FORMAT_HALF,
        FLOAT,
    ];
    for format in formats {
        for channels in [1, 2, 4] {
            for (extent, flags) in [
                ([5, 0, 0], SURFACE),
                ([5, 3, 0], SURFACE | GATHER),
                ([5, 3, 2], SURFACE),
                ([5, 0, 4], LAYERED),
                ([5, 3, 4], LAYERED),
                ([4, 4, 6], CUBEMAP | SURFACE),
                ([4, 4, 12], CUBEMAP | LAYERED),
            ] {
                let array = Array::new(extent, format, channels, flags).unwrap();
                let count = array.copy().WidthInBytes * extent[1].max(1) * extent[2].max(1);
                let bytes: Vec<u8> = (0..count).map(|at| at as u8).collect();
                array.fill(&bytes)?;
                assert_eq!(array.read::<u8>()?, bytes, "{format:?} x {channels}, {extent:?}, {flags:#x}");
                let mut found = super::description([0; 3], BYTE, 0, 99);
                // SAFETY: the pointer is valid.
                unsafe { sys::cuArray3DGetDescriptor_v2(&raw mut found, array.handle) }.result()?;
                assert_eq!([found.Width, found.Height, found.Depth], extent);
                assert_eq!((found.Format, found.NumChannels, found.Flags), (format, channels, flags));
            }
        }
    }
    let (mut handle, mut found) = (std::ptr::null_mut(), plane_of([0, 0]));
    let parameters = plane_of([7, 2]);
    // SAFETY: the pointers are valid, and the array is destroyed once.
    unsafe {
        sys::cuArrayCreate_v2(&raw mut handle, &raw const parameters).result()?;
        sys::cuArrayGetDescriptor_v2(&raw mut found, handle).result()?;
        sys::cuArrayDestroy(handle).result()?;
    }
    assert_eq!((found.Width, found.Height, found.Format, found.NumChannels), (7, 2, FLOAT, 1));
    Ok(())
}

fn plane_of([width, height]: [usize; 2]) -> CUDA_ARRAY_DESCRIPTOR {
    CUDA_ARRAY_DESCRIPTOR { Width: width, Height: height, Format: FLOAT, NumChannels: 1 }
}

pub(super) fn copies() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (one, other) =
        (Array::new([8, 0, 0], FLOAT, 1, 0).unwrap(), Array::new([8, 0, 0], FLOAT, 1, 0).unwrap());
    let values: Vec<f32> = (0..8).map(|at| at as f32).collect();
    let (mut back, mut last) = ([0.0_f32; 8], [0.0_f32; 2]);
    let memory = gpu.floats(8)?;
    let device = address(&memory);
    let stream = gpu.stream.cu_stream();
    // SAFETY: all ranges are in the arrays, in the buffer, and in the host's values.
    unsafe {
        sys::cuMemcpyHtoA_v2(one.handle, 0, host(&values), 32).result()?;
        sys::cuMemcpyAtoA_v2(other.handle, 8, one.handle, 0, 24).result()?;
        sys::cuMemcpyHtoAAsync_v2(other.handle, 0, host(&[70.0_f32, 71.0]), 8, stream).result()?;
        sys::cuMemcpyAtoD_v2(device, other.handle, 0, 32).result()?;
        sys::cuMemcpyDtoA_v2(one.handle, 16, device, 16).result()?;
        sys::cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), one.handle, 0, 32).result()?;
        sys::cuMemcpyAtoHAsync_v2(last.as_mut_ptr().cast(), other.handle, 24, 8, stream).result()?;
    }
    gpu.stream.synchronize()?;
    assert_eq!(back, [0.0, 1.0, 2.0, 3.0, 70.0, 71.0, 0.0, 1.0]);
    assert_eq!(last, [4.0, 5.0]);
    Ok(())
}

pub(super) fn boxes() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let values: Vec<u32> = (0..60).collect();
    let format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32;
    let array = Array::new([5, 4, 3], format, 1, 0).unwrap();
    array.fill(&values)?;
    let memory = gpu.stream.alloc_zeros::<u32>(8)?;
    // 2 x 2 x 2 elements from (1, 2, 1).
    let mut copy = array.copy();
    (copy.srcXInBytes, copy.srcY, copy.srcZ) = (4, 2, 1);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (8, 2, 2);
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    (copy.dstDevice, copy.dstPitch, copy.dstHeight) = (address(&memory), 8, 2);
    // SAFETY: the box is in the array and in the buffer.
    unsafe { sys::cuMemcpy3DAsync_v2(&raw const copy, gpu.stream.cu_stream()) }.result()?;
    assert_eq!(gpu.stream.clone_dtoh(&memory)?, [31, 32, 36, 37, 51, 52, 56, 57]);
    // From one array to a plane of another.
    let plane = Array::new([3, 2, 0], format, 1, 0).unwrap();
    plane.fill(&[100_u32, 101, 102, 103, 104, 105])?;
    let mut copy = plane.copy();
    copy.dstArray = array.handle;
    (copy.dstXInBytes, copy.dstY, copy.dstZ) = (8, 1, 2);
    // SAFETY: the box is in both arrays.
    unsafe { sys::cuMemcpy3D_v2(&raw const copy) }.result()?;
    let found = array.read::<u32>()?;
    assert_eq!((&found[47..50], &found[52..55]), (&[100, 101, 102][..], &[103, 104, 105][..]));
    assert_eq!((found[46], found[50], found[51]), (46, 50, 51));
    // A 2D copy back to the host.
    let mut received = [0_u32; 4];
    // SAFETY: the memory types are set, and the rows are in the array and in the received values.
    unsafe {
        let mut copy = std::mem::MaybeUninit::<CUDA_MEMCPY2D>::zeroed();
        let it = &mut *copy.as_mut_ptr();
        it.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
        it.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
        (it.srcArray, it.srcXInBytes, it.dstHost) = (plane.handle, 4, received.as_mut_ptr().cast());
        (it.dstPitch, it.WidthInBytes, it.Height) = (8, 8, 2);
        sys::cuMemcpy2D_v2(copy.as_ptr()).result()?;
    }
    assert_eq!(received, [101, 102, 104, 105]);
    Ok(())
}

pub(super) fn graph() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([4, 2, 0], FLOAT, 1, 0).unwrap();
    array.fill(&[1.0_f32; 8])?;
    let memory = gpu.stream.clone_htod(&[2.0_f32, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])?;
    let mut copy = array.copy();
    (copy.srcMemoryType, copy.srcDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, address(&memory));
    let (mut graph, mut node, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are valid, and the copy is in the array and in the buffer.
    unsafe {
        sys::cuGraphCreate(&raw mut graph, 0).result()?;
        let context = gpu.context.cu_ctx();
        sys::cuGraphAddMemcpyNode(&raw mut node, graph, std::ptr::null(), 0, &raw const copy, context)
            .result()?;
        sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).result()?;
        assert_eq!(array.read::<f32>()?, [1.0; 8]);
        sys::cuGraphLaunch(exec, gpu.stream.cu_stream()).result()?;
        assert_eq!(array.read::<f32>()?, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        sys::cuGraphExecDestroy(exec).result()?;
        sys::cuGraphDestroy(graph).result()?;
    }
    Ok(())
}

pub(super) fn peers() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let one = Array::new([4, 2, 0], FLOAT, 1, 0).unwrap();
    let values = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    one.fill(&values)?;
    let other_context = crate::device::untracked(1);
    other_context.bind_to_thread()?;
    let other = Array::new([4, 2, 0], FLOAT, 1, 0).unwrap();
    let mut copy = one.copy();
    copy.dstArray = other.handle;
    // SAFETY: CUDA_MEMCPY3D_PEER has the same layout, and the box is in both arrays.
    unsafe {
        let copy: sys::CUDA_MEMCPY3D_PEER = std::mem::transmute_copy(&copy);
        sys::cuMemcpy3DPeer(&raw const copy).result()?;
    }
    assert_eq!(other.read::<f32>()?, values);
    drop(other);
    gpu.context.bind_to_thread()?;
    Ok(())
}
