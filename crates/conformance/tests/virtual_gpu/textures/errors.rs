//! What is refused, and what is reported.

use cudarc::driver::LaunchConfig;
use cudarc::driver::sys::{self, CUarray_format, CUmemorytype, CUresult};

use super::{
    Array, BYTE, CLAMP, CUBEMAP, FLOAT, GATHER, Gpu, INTEGERS, LAYERED, LINEAR, NORMALIZED, Object, Resource,
    SURFACE, Sampler, array_resource, host, launch, ok, plane, refused,
};
use crate::fails;
use crate::raw::address;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

pub(super) fn arrays() -> anyhow::Result<()> {
    let _gpu = Gpu::new()?;
    for (extent, channels, flags, words) in [
        ([0, 4, 0], 1, 0, "the width of an array must not be 0"),
        ([4, 0, 4], 1, 0, "a 3D array's height must not be 0"),
        ([4, 4, 0], 3, 0, "1, 2, or 4 channels, not 3"),
        ([4, 4, 0], 1, LAYERED, "at least 1 layer"),
        ([4, 3, 6], 1, CUBEMAP, "must be the same, and its depth 6: 4 x 3 x 6"),
        ([4, 4, 8], 1, CUBEMAP | LAYERED, "a multiple of 6"),
        ([4, 4, 4], 1, GATHER, "only 2D arrays"),
        ([131_073, 4, 0], 1, 0, "the width of a 2D array can be at most 131072, not 131073"),
        ([40_000, 4, 0], 1, GATHER, "at most 32768"),
        ([40_000, 0, 0], 1, SURFACE, "at most 32768"),
        ([4, 4, 3000], 1, LAYERED, "the depth of a 2D layered array can be at most 2048"),
        ([4, 4, 0], 1, 0x1000, "flags that arrays don't have"),
    ] {
        refused(Array::new(extent, FLOAT, channels, flags), INVALID, words);
    }
    for (format, flags, words) in [
        (CUarray_format::CU_AD_FORMAT_NV12, 0, "the array format 0xb0"),
        (CUarray_format::CU_AD_FORMAT_BC1_UNORM, 0, "the array format 0x91"),
        (FLOAT, 0x40, "CUDA_ARRAY3D_SPARSE"),
        (FLOAT, 0x10, "CUDA_ARRAY3D_DEPTH_TEXTURE"),
    ] {
        refused(Array::new([4, 4, 0], format, 1, flags), UNSUPPORTED, words);
    }
    // A volume that is deep but not wide has other limits.
    assert!(Array::new([2, 2, 20_000], BYTE, 1, 0).is_ok());
    let huge = Array::new([16_384, 16_384, 16_384], FLOAT, 4, 0);
    refused(huge, CUresult::CUDA_ERROR_OUT_OF_MEMORY, "were requested");
    // SAFETY: the call is refused.
    let code = unsafe { sys::cuArrayDestroy(0x1230 as sys::CUarray) };
    refused(ok(code), CUresult::CUDA_ERROR_INVALID_HANDLE, "is not a CUDA array");
    Ok(())
}

pub(super) fn copies() -> anyhow::Result<()> {
    let _gpu = Gpu::new()?;
    let array = Array::new([4, 3, 0], FLOAT, 2, 0).unwrap();
    let values = [0_u8; 96];
    let mut right = array.copy();
    (right.srcMemoryType, right.srcHost) = (CUmemorytype::CU_MEMORYTYPE_HOST, host(&values));
    type Change = fn(&mut sys::CUDA_MEMCPY3D);
    let changes: [(Change, &str); 6] = [
        (|copy| copy.dstXInBytes = 8, "extends to byte 40, but the array ends at 32"),
        (|copy| copy.dstY = 1, "extends to row 4, but the array ends at 3"),
        (|copy| copy.dstZ = 1, "extends to plane 2, but the array ends at 1"),
        (|copy| copy.WidthInBytes = 12, "multiples of the 8 bytes of an element"),
        (|copy| copy.dstLOD = 1, "the level of detail must be 0"),
        (|copy| copy.dstArray = 0x770 as sys::CUarray, "is not a CUDA array"),
    ];
    for (change, words) in changes {
        let mut copy = right;
        change(&mut copy);
        // SAFETY: the copy is refused.
        refused(ok(unsafe { sys::cuMemcpy3D_v2(&raw const copy) }), INVALID, words);
    }
    // SAFETY: the copies are refused.
    unsafe {
        let code = sys::cuMemcpyHtoA_v2(array.handle, 0, host(&values), 8);
        refused(ok(code), INVALID, "the array is 2D: copy it with cuMemcpy2D");
        let line = Array::new([4, 0, 0], FLOAT, 1, 0).unwrap();
        let code = sys::cuMemcpyHtoA_v2(line.handle, 8, host(&values), 12);
        refused(ok(code), INVALID, "bytes 8..20 are not all in the array, which has 16 bytes");
    }
    Ok(())
}

pub(super) fn objects() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([4, 3, 0], BYTE, 1, 0).unwrap();
    let sampler = |change: fn(&mut Sampler)| {
        let mut sampler = Sampler::new(CLAMP, 0, NORMALIZED);
        change(&mut sampler);
        sampler
    };
    type Change = fn(&mut Sampler);
    let invalid: [(Change, &str); 4] = [
        (|it| it.modes[1] = 4, "there is no address mode 4"),
        (|it| it.filter = 2, "there is no filter mode 2"),
        (|it| it.flags = 0x80, "flags that textures don't have"),
        (|it| (it.filter, it.flags) = (LINEAR, INTEGERS), "can't be filtered"),
    ];
    for (change, words) in invalid {
        refused(array.texture(&sampler(change)), INVALID, words);
    }
    let unsupported: [(Change, &str); 3] = [
        (|it| it.flags = 0x40, "CU_TRSF_SEAMLESS_CUBEMAP"),
        (|it| it.anisotropy = 8, "anisotropic filtering"),
        (|it| it.flags = INTEGERS | 0x10, "CU_TRSF_SRGB"),
    ];
    for (change, words) in unsupported {
        refused(array.texture(&sampler(change)), UNSUPPORTED, words);
    }
    // The filter between levels doesn't matter without a mipmap.
    assert!(array.texture(&sampler(|it| (it.level_filter, it.flags) = (LINEAR, INTEGERS))).is_ok());
    refused(array.surface(), INVALID, "CUDA_ARRAY3D_SURFACE_LDST");
    let right = sampler(|_| {});
    let of = |kind, fields: &[u64]| Object::texture(&Resource::new(kind, fields).described(), &right);
    refused(of(0, &[0x990]), INVALID, "0x990 is not a CUDA array");
    refused(of(1, &[array.handle as u64]), INVALID, "is not a mipmapped array");
    let memory = gpu.floats(256)?;
    let (base, format) = (address(&memory), u64::from(FLOAT as u32) | 1 << 32);
    refused(of(2, &[base + 4, format, 64]), INVALID, "must be a multiple of 512");
    refused(of(2, &[base, format, 0]), INVALID, "1 to 268435456 elements, not 0");
    refused(of(2, &[base, format, 1028]), INVALID, "not all in one buffer");
    refused(of(3, &[base, format, 8, 4, 48]), INVALID, "the pitch must be a multiple of 32");
    refused(of(3, &[base, format, 8, 40, 32]), INVALID, "not all in one buffer");
    let mut flagged = Resource::new(0, &[array.handle as u64]);
    flagged.flags = 1;
    refused(Object::texture(&flagged.described(), &right), INVALID, "must be 0, not 0x1");
    let other = crate::device::untracked(1);
    other.bind_to_thread()?;
    let foreign = Object::texture(&array_resource(array.handle), &right);
    refused(foreign, INVALID, "belongs to another context");
    gpu.context.bind_to_thread()?;
    // SAFETY: the calls are refused.
    unsafe {
        refused(ok(sys::cuTexObjectDestroy(5)), INVALID, "0x5 is not a texture object");
        let mut handle = 0;
        let code =
            sys::cuTexObjectCreate(&raw mut handle, std::ptr::null(), std::ptr::null(), std::ptr::null());
        refused(ok(code), INVALID, "the pointer to the resource description is null");
    }
    Ok(())
}

pub(super) fn outside() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([64, 4, 0], FLOAT, 1, SURFACE).unwrap();
    let surface = array.surface().unwrap();
    let function = gpu.function("draw_unscaled")?;
    let launched = launch(&gpu.stream, &function, crate::device::shape(1, 32), &[surface.handle.into()]);
    let words = [
        "kernel `draw_unscaled` goes outside of a surface",
        "writes 4 bytes at byte 256 of row 3: the surface has 4 rows of 256 bytes",
    ];
    fails(launched.and_then(|()| gpu.stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

pub(super) fn destroyed() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([8, 8, 0], FLOAT, 1, 0).unwrap();
    array.fill(&[1.0_f32; 64])?;
    let texture = array.texture(&Sampler::new(CLAMP, 0, NORMALIZED)).unwrap();
    drop(array);
    let to = gpu.floats(64)?;
    let launched = gpu.run("turn", address(&to), [8, 8], &[0.0_f32.into(), texture.handle.into()]);
    let words = ["kernel `turn` uses freed memory", "freed"];
    fails(launched.and_then(|()| gpu.stream.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

pub(super) fn race() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (one, two) = (gpu.context.new_stream()?, gpu.context.new_stream()?);
    let array = Array::new([16, 8, 0], FLOAT, 1, SURFACE).unwrap();
    let surface = array.surface().unwrap();
    let from = gpu.stream.clone_htod(&[1.0_f32; 128])?;
    let to = gpu.floats(128)?;
    gpu.stream.synchronize()?;
    let function = gpu.function("draw")?;
    let (from_address, shape) = (address(&from), plane(16, 8));
    let draw = |shape: LaunchConfig| {
        launch(
            &one,
            &function,
            shape,
            &[from_address.into(), 16_i32.into(), 8_i32.into(), surface.handle.into()],
        )
    };
    let mut copy = array.copy();
    (copy.dstMemoryType, copy.dstDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, address(&to));
    // SAFETY: the rows are in the array and in the buffer.
    let read = || ok(unsafe { sys::cuMemcpy3DAsync_v2(&raw const copy, two.cu_stream()) });
    // With an event, the copy waits for the kernel.
    draw(shape)?;
    two.wait(&one.record_event(None)?)?;
    read().unwrap();
    one.wait(&two.record_event(None)?)?;
    draw(shape)?;
    let copied = read();
    let copied = copied.map_err(cudarc::driver::DriverError).and_then(|()| two.synchronize());
    let words = ["data race on GPU 0", "written by kernel `draw`", "a copy"];
    fails(copied, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

pub(super) fn unwritten() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([8, 8, 0], FLOAT, 1, 0).unwrap();
    let texture = array.texture(&Sampler::new(CLAMP, LINEAR, NORMALIZED)).unwrap();
    let to = gpu.floats(64)?;
    let launched = gpu.run("turn", address(&to), [8, 8], &[0.0_f32.into(), texture.handle.into()]);
    let words = ["kernel `turn` reads bytes that nothing wrote"];
    fails(launched.and_then(|()| gpu.stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

pub(super) fn in_place() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([16, 8, 0], FLOAT, 1, SURFACE).unwrap();
    array.fill(&[1.0_f32; 128])?;
    let (surface, texture) = (array.surface().unwrap(), array.texture(&Sampler::new(CLAMP, 0, 0)).unwrap());
    let function = gpu.function("smear")?;
    let launched =
        launch(&gpu.stream, &function, plane(16, 8), &[surface.handle.into(), texture.handle.into()]);
    let words = ["kernel `smear`", "may not see what the same kernel has written"];
    fails(launched.and_then(|()| gpu.stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

pub(super) fn no_object() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([8, 8, 0], FLOAT, 1, 0).unwrap();
    array.fill(&[1.0_f32; 64])?;
    let handle = array.texture(&Sampler::new(CLAMP, 0, NORMALIZED)).unwrap().handle;
    let to = gpu.floats(64)?;
    let launched = gpu.run("shift", address(&to), [8, 8], &[0.into(), 0.into(), handle.into()]);
    let words = ["kernel `shift`", "no texture or surface object of the kernel's context has this handle"];
    fails(launched.and_then(|()| gpu.stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}
