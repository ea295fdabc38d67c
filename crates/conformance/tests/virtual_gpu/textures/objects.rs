//! Textures and surfaces of every kind of resource.

use cudarc::driver::LaunchConfig;
use cudarc::driver::sys::{self, CUDA_RESOURCE_VIEW_DESC};

use super::{
    Array, BYTE, CLAMP, CUBEMAP, FLOAT, GATHER, Gpu, INTEGERS, LAYERED, LINEAR, NORMALIZED, Object, Resource,
    SURFACE, Sampler, WRAP, array_resource, description, launch, ok, plane, zeros,
};
use crate::raw::address;

/// Numbers that differ from their neighbors.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at * 37 % 101) as f32).collect()
}

/// Returns the linear mixture at a point of a picture that repeats.
fn mixed(picture: &[f32], [width, height]: [usize; 2], [u, v]: [f32; 2]) -> f32 {
    let part = |coordinate: f32, extent: usize| {
        let place = (f64::from(coordinate) * extent as f64 - 0.5).rem_euclid(extent as f64);
        let fixed = (place * 256.0).round() as usize;
        (fixed / 256 % extent, (fixed / 256 + 1) % extent, (fixed % 256) as f32 / 256.0)
    };
    let ((x0, x1, a), (y0, y1, b)) = (part(u, width), part(v, height));
    let at = |x: usize, y: usize| picture[y * width + x];
    (1.0 - b) * ((1.0 - a) * at(x0, y0) + a * at(x1, y0)) + b * ((1.0 - a) * at(x0, y1) + a * at(x1, y1))
}

/// NVIDIA's sample `simpleTexture`.
pub(super) fn turn() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (width, height) = (24_usize, 16_usize);
    let picture = numbers(width * height);
    let array = Array::new([width, height, 0], FLOAT, 1, 0).unwrap();
    array.fill(&picture)?;
    let texture = array.texture(&Sampler::new(WRAP, LINEAR, NORMALIZED)).unwrap();
    let to = gpu.floats(width * height)?;
    let angle = 0.5_f32;
    gpu.run("turn", address(&to), [width, height], &[angle.into(), texture.handle.into()])?;
    let turned = gpu.stream.clone_dtoh(&to)?;
    for (at, &found) in turned.iter().enumerate() {
        let u = (at % width) as f32 / width as f32 + 0.5 / width as f32 - 0.5;
        let v = (at / width) as f32 / height as f32 + 0.5 / height as f32 - 0.5;
        let point = [u * angle.cos() - v * angle.sin() + 0.5, v * angle.cos() + u * angle.sin() + 0.5];
        let expected = mixed(&picture, [width, height], point);
        // The last bit of a weight may differ: 1/256 of the largest difference between neighbors.
        assert!((found - expected).abs() < 1.0, "element {at}: {found}, not {expected}");
    }
    Ok(())
}

/// NVIDIA's sample `simpleSurfaceWrite`.
pub(super) fn surface() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (width, height) = (20_usize, 12_usize);
    let picture = gpu.stream.clone_htod(&numbers(width * height))?;
    let array = Array::new([width, height, 0], FLOAT, 1, SURFACE).unwrap();
    let surface = array.surface().unwrap();
    let texture = array.texture(&Sampler::new(CLAMP, 0, NORMALIZED)).unwrap();
    let to = gpu.floats(width * height)?;
    gpu.run("draw", address(&picture), [width, height], &[surface.handle.into()])?;
    gpu.run("turn", address(&to), [width, height], &[0.0_f32.into(), texture.handle.into()])?;
    assert_eq!(gpu.stream.clone_dtoh(&to)?, numbers(width * height));
    assert_eq!(array.read::<f32>()?, numbers(width * height));
    Ok(())
}

/// NVIDIA's sample `simplePitchLinearTexture`.
pub(super) fn pitched() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (width, height, pitch) = (24_usize, 10_usize, 128_usize);
    let mut rows = vec![-1.0; height * pitch / 4];
    let picture = numbers(width * height);
    for (row, values) in rows.chunks_exact_mut(pitch / 4).zip(picture.chunks_exact(width)) {
        row[..width].copy_from_slice(values);
    }
    let memory = gpu.stream.clone_htod(&rows)?;
    let format = u64::from(FLOAT as u32) | 1 << 32;
    let fields = [address(&memory), format, width as u64, height as u64, pitch as u64];
    let texture =
        Object::texture(&Resource::new(3, &fields).described(), &Sampler::new(WRAP, 0, NORMALIZED)).unwrap();
    let to = gpu.floats(width * height)?;
    gpu.run("shift", address(&to), [width, height], &[5.into(), (-3).into(), texture.handle.into()])?;
    let shifted = gpu.stream.clone_dtoh(&to)?;
    for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
        let from = (y + height - 3) % height * width + (x + 5) % width;
        assert_eq!(shifted[y * width + x], picture[from], "({x}, {y})");
    }
    Ok(())
}

/// NVIDIA's sample `simpleLayeredTexture`.
pub(super) fn layers() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let (width, count) = (8_usize, 5_usize);
    let array = Array::new([width, width, count], FLOAT, 1, LAYERED).unwrap();
    array.fill(&numbers(width * width * count))?;
    let texture = array.texture(&Sampler::new(WRAP, LINEAR, NORMALIZED)).unwrap();
    let to = gpu.floats(width * width * count)?;
    let function = gpu.function("layers")?;
    let to_address = address(&to);
    let shape = LaunchConfig { grid_dim: (5, 1, 1), block_dim: (8, 8, 1), shared_mem_bytes: 0 };
    launch(
        &gpu.stream,
        &function,
        shape,
        &[to_address.into(), (width as i32).into(), texture.handle.into()],
    )?;
    let values = numbers(width * width * count);
    let expected: Vec<f32> = (0..).zip(values).map(|(at, value)| (at / 64) as f32 - value).collect();
    assert_eq!(gpu.stream.clone_dtoh(&to)?, expected);
    Ok(())
}

/// NVIDIA's sample `simpleCubemapTexture`.
pub(super) fn faces() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let width = 8_usize;
    let array = Array::new([width, width, 6], FLOAT, 1, CUBEMAP).unwrap();
    array.fill(&numbers(width * width * 6))?;
    let texture = array.texture(&Sampler::new(WRAP, LINEAR, NORMALIZED)).unwrap();
    let to = gpu.floats(width * width * 6)?;
    let function = gpu.function("faces")?;
    let to_address = address(&to);
    launch(
        &gpu.stream,
        &function,
        plane(8, 8),
        &[to_address.into(), (width as i32).into(), texture.handle.into()],
    )?;
    assert_eq!(gpu.stream.clone_dtoh(&to)?, numbers(width * width * 6));
    Ok(())
}

/// NVIDIA's sample `simpleTexture3D`: bytes, which are read as numbers up to 1.
pub(super) fn volume() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let [width, height, depth] = [8_usize, 6, 4];
    let bytes: Vec<u8> = (0..width * height * depth).map(|at| (at * 7 % 251) as u8).collect();
    let array = Array::new([width, height, depth], BYTE, 1, 0).unwrap();
    array.fill(&bytes)?;
    let texture = array.texture(&Sampler::new(WRAP, LINEAR, NORMALIZED)).unwrap();
    let to = gpu.floats(width * height)?;
    // Between the second plane and the third.
    let w = 0.5_f32;
    gpu.run("slice", address(&to), [width, height], &[w.into(), texture.handle.into()])?;
    for (at, found) in gpu.stream.clone_dtoh(&to)?.into_iter().enumerate() {
        let plane = |z: usize| f32::from(bytes[z * width * height + at]) / 255.0;
        let expected = (plane(1) + plane(2)) / 2.0;
        assert!((found - expected).abs() < 1e-6, "{at}: {found}, not {expected}");
    }
    Ok(())
}

pub(super) fn buffer() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let memory = gpu.stream.clone_htod(&numbers(32))?;
    let resource = Resource::floats(address(&memory), 96).described();
    // CUDA ignores the filter of linear memory.
    let texture = Object::texture(&resource, &Sampler::new(CLAMP, LINEAR, 0)).unwrap();
    let to = gpu.floats(32)?;
    let function = gpu.function("fetch")?;
    let to_address = address(&to);
    launch(
        &gpu.stream,
        &function,
        crate::device::shape(1, 32),
        &[to_address.into(), 28_i32.into(), texture.handle.into()],
    )?;
    let mut expected = numbers(32);
    expected[24..].fill(0.0);
    assert_eq!(gpu.stream.clone_dtoh(&to)?, expected);
    Ok(())
}

/// NVIDIA's sample `bindlessTexture`.
pub(super) fn mipmaps() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let width = 8_usize;
    let mut handle = std::ptr::null_mut();
    let parameters = description([width, width, 0], BYTE, 4, SURFACE);
    // One level more than the four that such an array can have.
    // SAFETY: both pointers are valid.
    unsafe { sys::cuMipmappedArrayCreate(&raw mut handle, &raw const parameters, 5) }.result()?;
    let level = |number: u32| {
        let mut level = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        ok(unsafe { sys::cuMipmappedArrayGetLevel(&raw mut level, handle, number) })?;
        let width = width >> number;
        Ok::<_, sys::CUresult>(Array { handle: level, extent: [width, width, 0], bytes: 4, is_own: false })
    };
    super::refused(level(4), sys::CUresult::CUDA_ERROR_INVALID_VALUE, "there is no level 4");
    let colors: Vec<u8> = (0..width * width).flat_map(|at| [at as u8, 4 * (at / 8) as u8, 40, 255]).collect();
    level(0).unwrap().fill(&colors)?;
    let function = gpu.function("smaller")?;
    for number in 1..4 {
        let (from, to) = (level(number - 1).unwrap(), level(number).unwrap());
        let texture = from.texture(&Sampler::new(CLAMP, LINEAR, NORMALIZED)).unwrap();
        let (surface, width) = (to.surface().unwrap(), (width >> number) as i32);
        launch(
            &gpu.stream,
            &function,
            plane(width as u32, width as u32),
            &[surface.handle.into(), texture.handle.into(), width.into(), width.into()],
        )?;
    }
    // The mean of four colors of the first level, and of all.
    assert_eq!(level(1).unwrap().read::<u8>()?[..4], [5, 2, 40, 255]);
    assert_eq!(level(3).unwrap().read::<u8>()?, [32, 14, 40, 255]);
    let texture = Object::texture(
        &Resource::mipmap(handle).described(),
        &Sampler { level_filter: LINEAR, levels: [0.0, 3.0], ..Sampler::new(CLAMP, LINEAR, NORMALIZED) },
    )
    .unwrap();
    let handles = gpu.stream.clone_htod(&[texture.handle; 2])?;
    let to = gpu.floats(8)?;
    let bindless = gpu.function("bindless")?;
    let (to_address, from) = (address(&to), address(&handles));
    for (level, expected) in [(3.0_f32, 32.0), (9.0, 32.0), (0.0, 31.5)] {
        launch(
            &gpu.stream,
            &bindless,
            crate::device::shape(1, 2),
            &[to_address.into(), from.into(), level.into()],
        )?;
        let found = gpu.stream.clone_dtoh(&to)?;
        assert!((found[4] * 255.0 - expected).abs() < 1e-4, "level {level}: {found:?}");
    }
    drop(texture);
    // SAFETY: the array is destroyed once.
    unsafe { sys::cuMipmappedArrayDestroy(handle) }.result()?;
    super::refused(
        level(0),
        sys::CUresult::CUDA_ERROR_INVALID_HANDLE,
        "is not a mipmapped array, or it has been destroyed",
    );
    Ok(())
}

pub(super) fn gather() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([4, 3, 0], BYTE, 1, GATHER).unwrap();
    array.fill(&(0..12).collect::<Vec<u8>>())?;
    let texture = array.texture(&Sampler::new(CLAMP, 0, INTEGERS)).unwrap();
    let to = gpu.stream.alloc_zeros::<u32>(4)?;
    let function = gpu.function("gather")?;
    let to_address = address(&to);
    launch(
        &gpu.stream,
        &function,
        crate::device::shape(1, 1),
        &[to_address.into(), 2.0_f32.into(), 1.0_f32.into(), texture.handle.into()],
    )?;
    assert_eq!(gpu.stream.clone_dtoh(&to)?, [5, 6, 2, 1]);
    Ok(())
}

pub(super) fn descriptions() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let array = Array::new([4, 3, 0], FLOAT, 2, SURFACE).unwrap();
    let sampler =
        Sampler { levels: [0.5, 2.0], border: [1.0, 2.0, 3.0, 4.0], ..Sampler::new(3, LINEAR, NORMALIZED) };
    let (texture, surface) = (array.texture(&sampler).unwrap(), array.surface().unwrap());
    // SAFETY: the structures hold what the driver writes, and enumerations are numbers in ours.
    unsafe {
        let (mut resource, mut found) = (Resource::new(9, &[]), Sampler::new(0, 0, 0));
        sys::cuTexObjectGetResourceDesc((&raw mut resource).cast(), texture.handle).result()?;
        assert_eq!((resource.kind, resource.fields[0], resource.flags), (0, array.handle as u64, 0));
        sys::cuTexObjectGetTextureDesc((&raw mut found).cast(), texture.handle).result()?;
        assert_eq!(found, sampler);
        let mut of_surface = Resource::new(9, &[]);
        sys::cuSurfObjectGetResourceDesc((&raw mut of_surface).cast(), surface.handle).result()?;
        assert_eq!(of_surface.fields[0], array.handle as u64);
        let mut view: CUDA_RESOURCE_VIEW_DESC = zeros();
        let code = sys::cuTexObjectGetResourceViewDesc(&raw mut view, texture.handle);
        super::refused(ok(code), sys::CUresult::CUDA_ERROR_INVALID_VALUE, "has no resource view");
        let memory = gpu.floats(64)?;
        let rows = [address(&memory), u64::from(FLOAT as u32) | 2 << 32, 4, 3, 64];
        let pitched = Object::texture(&Resource::new(3, &rows).described(), &sampler).unwrap();
        sys::cuTexObjectGetResourceDesc((&raw mut resource).cast(), pitched.handle).result()?;
        assert_eq!((resource.kind, &resource.fields[..5]), (3, &rows[..]));
        let mut most = 0;
        sys::cuDeviceGetTexture1DLinearMaxWidth(&raw mut most, FLOAT, 4, 0).result()?;
        assert_eq!(most, 1 << 28);
    }
    Ok(())
}

pub(super) fn view() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let width = 8_usize;
    let array = Array::new([width, width, 5], FLOAT, 1, LAYERED).unwrap();
    array.fill(&numbers(width * width * 5))?;
    // SAFETY: 0 is CU_RES_VIEW_FORMAT_NONE.
    let mut view: CUDA_RESOURCE_VIEW_DESC = unsafe { zeros() };
    (view.width, view.height, view.depth, view.firstLayer, view.lastLayer) = (width, width, 5, 2, 3);
    let resource = array_resource(array.handle);
    let texture =
        Object::texture_of(&resource, &Sampler::new(CLAMP, 0, NORMALIZED), &raw const view).unwrap();
    let to = gpu.floats(width * width * 2)?;
    let function = gpu.function("layers")?;
    let to_address = address(&to);
    let shape = LaunchConfig { grid_dim: (2, 1, 1), block_dim: (8, 8, 1), shared_mem_bytes: 0 };
    launch(
        &gpu.stream,
        &function,
        shape,
        &[to_address.into(), (width as i32).into(), texture.handle.into()],
    )?;
    let values = numbers(width * width * 5);
    let expected: Vec<f32> = (0..128).map(|at| (at / 64) as f32 - values[at + 128]).collect();
    assert_eq!(gpu.stream.clone_dtoh(&to)?, expected);
    let mut found: CUDA_RESOURCE_VIEW_DESC = view;
    found.firstLayer = 0;
    // SAFETY: the pointer is valid.
    unsafe { sys::cuTexObjectGetResourceViewDesc(&raw mut found, texture.handle) }.result()?;
    assert_eq!((found.width, found.firstLayer, found.lastLayer), (width, 2, 3));
    view.lastLayer = 5;
    super::refused(
        Object::texture_of(&resource, &Sampler::new(CLAMP, 0, NORMALIZED), &raw const view),
        sys::CUresult::CUDA_ERROR_INVALID_VALUE,
        "the view has the layers 2 to 5, but the array has 5",
    );
    Ok(())
}

/// A graph whose kernel reads a texture that was created after the capture.
pub(super) fn newer() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let stream = gpu.context.new_stream()?;
    let (handles, to) = (gpu.stream.alloc_zeros::<u64>(1)?, gpu.floats(4)?);
    gpu.stream.synchronize()?;
    let function = gpu.function("bindless")?;
    let arguments = [address(&to).into(), address(&handles).into(), 0.0_f32.into()];
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    launch(&stream, &function, crate::device::shape(1, 1), &arguments)?;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.expect("a launch was captured");
    for value in [3.0_f32, 5.0] {
        let array = Array::new([1, 1, 0], FLOAT, 1, 0).unwrap();
        array.fill(&[value])?;
        let texture = array.texture(&Sampler::new(CLAMP, 0, NORMALIZED)).unwrap();
        // SAFETY: the buffer has room for a handle.
        unsafe { sys::cuMemcpyHtoD_v2(address(&handles), super::host(&[texture.handle]), 8) }.result()?;
        graph.launch()?;
        stream.synchronize()?;
        assert_eq!(gpu.stream.clone_dtoh(&to)?, [value, 0.0, 0.0, 1.0]);
    }
    Ok(())
}
