//! CUDA arrays, textures, and surfaces, used as NVIDIA's samples use them.

mod arrays;
mod errors;
mod objects;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUarray, CUarray_format, CUmemorytype, CUmipmappedArray,
    CUresult,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::untracked;

const PTX: &str = include_str!("../ptx/textures.ptx");

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("textures::a_picture_is_turned", objects::turn),
        Check::new("textures::a_surface_is_written_and_read_as_a_texture", objects::surface),
        Check::new("textures::pitched_memory_repeats", objects::pitched),
        Check::new("textures::layers", objects::layers),
        Check::new("textures::the_faces_of_a_cube", objects::faces),
        Check::new("textures::a_slice_of_a_volume", objects::volume),
        Check::new("textures::linear_memory_is_read_by_index", objects::buffer),
        Check::new("textures::mipmaps_of_handles_in_memory", objects::mipmaps),
        Check::new("textures::four_elements_are_gathered", objects::gather),
        Check::new("textures::descriptions_are_returned", objects::descriptions),
        Check::new("textures::a_view_of_some_layers", objects::view),
        Check::new("textures::a_graph_finds_objects_when_it_is_launched", objects::newer),
        Check::new("textures::a_copy_between_arrays_of_two_gpus", arrays::peers),
        Check::new("textures::arrays_of_every_kind", arrays::kinds),
        Check::new("textures::copies_between_arrays_and_memory", arrays::copies),
        Check::new("textures::a_box_of_an_array", arrays::boxes),
        Check::new("textures::copies_of_arrays_in_a_graph", arrays::graph),
        Check::new("textures::wrong_arrays_are_named", errors::arrays),
        Check::new("textures::wrong_copies_are_named", errors::copies),
        Check::new("textures::wrong_objects_are_named", errors::objects),
        Check::new("textures::a_store_outside_of_a_surface", errors::outside),
        Check::new("textures::an_array_that_was_destroyed", errors::destroyed),
        Check::new("textures::an_object_that_was_destroyed", errors::no_object),
        Check::new("textures::a_race_between_a_surface_and_a_copy", errors::race),
        Check::new("textures::elements_that_nothing_wrote", errors::unwritten),
        Check::new("textures::a_picture_that_is_changed_in_place", errors::in_place),
    ]
}

const FLOAT: CUarray_format = CUarray_format::CU_AD_FORMAT_FLOAT;
const BYTE: CUarray_format = CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8;
const LAYERED: u32 = 0x01;
const SURFACE: u32 = 0x02;
const CUBEMAP: u32 = 0x04;
const GATHER: u32 = 0x08;

/// Returns a C structure of zeros.
///
/// # Safety
/// Zeros are a value of it.
unsafe fn zeros<T>() -> T {
    // SAFETY: the caller guarantees it.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Gpu {
    fn new() -> anyhow::Result<Self> {
        let context = untracked(0);
        Ok(Self { stream: context.default_stream(), context })
    }

    fn function(&self, name: &str) -> anyhow::Result<CudaFunction> {
        Ok(self.context.load_module(Ptx::from_src(PTX))?.load_function(name)?)
    }

    /// Launches a kernel whose first arguments are an address, a width, and a height, with one thread for each element.
    fn run(
        &self,
        kernel: &str,
        at: u64,
        [width, height]: [usize; 2],
        more: &[Argument],
    ) -> Result<(), DriverError> {
        let function = self.context.load_module(Ptx::from_src(PTX))?.load_function(kernel)?;
        let first = [at.into(), (width as i32).into(), (height as i32).into()];
        let arguments = [&first, more].concat();
        launch(&self.stream, &function, plane(width as u32, height as u32), &arguments)
    }

    fn floats(&self, count: usize) -> anyhow::Result<CudaSlice<f32>> {
        Ok(self.stream.alloc_zeros::<f32>(count)?)
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
enum Argument {
    Long(u64),
    Int(i32),
    Float(f32),
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::Long(value)
    }
}

impl From<i32> for Argument {
    fn from(value: i32) -> Self {
        Self::Int(value)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

/// Launches a kernel of `textures.cu`.
fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    shape: LaunchConfig,
    arguments: &[Argument],
) -> Result<(), DriverError> {
    let mut launch = stream.launch_builder(function);
    for argument in arguments {
        match argument {
            Argument::Long(value) => launch.arg(value),
            Argument::Int(value) => launch.arg(value),
            Argument::Float(value) => launch.arg(value),
        };
    }
    // SAFETY: the arguments have the types of the kernel's parameters, and each check makes its addresses and handles fit.
    unsafe { launch.launch(shape) }.map(drop)
}

/// Returns a launch shape that covers a plane with blocks of 8 x 8 threads.
fn plane(width: u32, height: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (width.div_ceil(8), height.div_ceil(8), 1),
        block_dim: (8, 8, 1),
        shared_mem_bytes: 0,
    }
}

/// An array.
struct Array {
    handle: CUarray,
    extent: [usize; 3],
    bytes: usize,
    /// A level of a mipmapped array is destroyed with it.
    is_own: bool,
}

impl Array {
    fn new(extent: [usize; 3], format: CUarray_format, channels: u32, flags: u32) -> Result<Self, CUresult> {
        let description = description(extent, format, channels, flags);
        let mut handle = std::ptr::null_mut();
        // SAFETY: both pointers are valid.
        ok(unsafe { sys::cuArray3DCreate_v2(&raw mut handle, &raw const description) })?;
        Ok(Self { handle, extent, bytes: bytes_of(format) * channels as usize, is_own: true })
    }

    /// Returns the parameters of a copy of the whole array, in which one side is still missing.
    fn copy(&self) -> CUDA_MEMCPY3D {
        let [width, height, depth] = self.extent;
        // SAFETY: the memory types are set below.
        let mut copy: CUDA_MEMCPY3D = unsafe {
            let mut copy = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
            (*copy.as_mut_ptr()).srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
            (*copy.as_mut_ptr()).dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
            copy.assume_init()
        };
        (copy.srcArray, copy.dstArray) = (self.handle, self.handle);
        (copy.WidthInBytes, copy.Height, copy.Depth) = (width * self.bytes, height.max(1), depth.max(1));
        (copy.srcPitch, copy.dstPitch) = (copy.WidthInBytes, copy.WidthInBytes);
        (copy.srcHeight, copy.dstHeight) = (copy.Height, copy.Height);
        copy
    }

    fn fill<T>(&self, values: &[T]) -> anyhow::Result<()> {
        let mut copy = self.copy();
        (copy.srcMemoryType, copy.srcHost) = (CUmemorytype::CU_MEMORYTYPE_HOST, values.as_ptr().cast());
        assert_eq!(size_of_val(values), copy.WidthInBytes * copy.Height * copy.Depth);
        // SAFETY: the values are as many bytes as the array has.
        unsafe { sys::cuMemcpy3D_v2(&raw const copy) }.result()?;
        Ok(())
    }

    fn read<T: Copy + Default>(&self) -> anyhow::Result<Vec<T>> {
        let mut copy = self.copy();
        let mut values = vec![T::default(); copy.WidthInBytes * copy.Height * copy.Depth / size_of::<T>()];
        (copy.dstMemoryType, copy.dstHost) = (CUmemorytype::CU_MEMORYTYPE_HOST, values.as_mut_ptr().cast());
        // SAFETY: the values are as many bytes as the array has.
        unsafe { sys::cuMemcpy3D_v2(&raw const copy) }.result()?;
        Ok(values)
    }

    fn texture(&self, texture: &Sampler) -> Result<Object, CUresult> {
        Object::texture(&array_resource(self.handle), texture)
    }

    fn surface(&self) -> Result<Object, CUresult> {
        let (resource, mut handle) = (array_resource(self.handle), 0);
        // SAFETY: both pointers are valid.
        ok(unsafe { sys::cuSurfObjectCreate(&raw mut handle, &raw const resource) })?;
        Ok(Object { handle, is_surface: true })
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: nothing else destroys the array.
            unsafe { sys::cuArrayDestroy(self.handle) };
        }
    }
}

fn ok(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

fn bytes_of(format: CUarray_format) -> usize {
    match format {
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8 | CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => 1,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_FLOAT => 4,
        _ => 2,
    }
}

fn description(
    [width, height, depth]: [usize; 3],
    format: CUarray_format,
    channels: u32,
    flags: u32,
) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: format,
        NumChannels: channels,
        Flags: flags,
    }
}

/// `CUDA_RESOURCE_DESC`, in which all fields are numbers.
#[derive(Clone, Copy)]
#[repr(C)]
struct Resource {
    kind: u32,
    fields: [u64; 16],
    flags: u32,
}

impl Resource {
    fn new(kind: u32, fields: &[u64]) -> Self {
        let mut all = [0; 16];
        all[..fields.len()].copy_from_slice(fields);
        Self { kind, fields: all, flags: 0 }
    }

    /// A buffer of numbers.
    fn floats(address: u64, bytes: u64) -> Self {
        Self::new(2, &[address, u64::from(FLOAT as u32) | 1 << 32, bytes])
    }

    fn mipmap(array: CUmipmappedArray) -> Self {
        Self::new(1, &[array as u64])
    }

    /// Returns the structure as cudarc declares it.
    fn described(&self) -> sys::CUDA_RESOURCE_DESC {
        const { assert!(size_of::<Self>() == size_of::<sys::CUDA_RESOURCE_DESC>()) }
        // SAFETY: it has the same layout, and the kind is one of the enumeration.
        unsafe { std::mem::transmute_copy(self) }
    }
}

fn array_resource(array: CUarray) -> sys::CUDA_RESOURCE_DESC {
    Resource::new(0, &[array as u64]).described()
}

/// `CUDA_TEXTURE_DESC`, in which enumerations are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Sampler {
    modes: [u32; 3],
    filter: u32,
    flags: u32,
    anisotropy: u32,
    level_filter: u32,
    bias: f32,
    levels: [f32; 2],
    border: [f32; 4],
    reserved: [i32; 12],
}

const WRAP: u32 = 0;
const CLAMP: u32 = 1;
const LINEAR: u32 = 1;
const INTEGERS: u32 = 1;
const NORMALIZED: u32 = 2;

impl Sampler {
    fn new(mode: u32, filter: u32, flags: u32) -> Self {
        Self {
            modes: [mode; 3],
            filter,
            flags,
            anisotropy: 0,
            level_filter: 0,
            bias: 0.0,
            levels: [0.0; 2],
            border: [0.0; 4],
            reserved: [0; 12],
        }
    }
}

/// A texture object or a surface object.
#[derive(Debug)]
struct Object {
    handle: u64,
    is_surface: bool,
}

impl Object {
    fn texture(resource: &sys::CUDA_RESOURCE_DESC, texture: &Sampler) -> Result<Self, CUresult> {
        Self::texture_of(resource, texture, std::ptr::null())
    }

    fn texture_of(
        resource: &sys::CUDA_RESOURCE_DESC,
        texture: &Sampler,
        view: *const sys::CUDA_RESOURCE_VIEW_DESC,
    ) -> Result<Self, CUresult> {
        const { assert!(size_of::<Sampler>() == size_of::<sys::CUDA_TEXTURE_DESC>()) }
        let mut handle = 0;
        let texture = (&raw const *texture).cast::<sys::CUDA_TEXTURE_DESC>();
        // SAFETY: all pointers are valid or null, and a texture has the layout of CUDA_TEXTURE_DESC.
        ok(unsafe { sys::cuTexObjectCreate(&raw mut handle, resource, texture, view) })?;
        Ok(Self { handle, is_surface: false })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: nothing else destroys the object.
        unsafe {
            match self.is_surface {
                true => sys::cuSurfObjectDestroy(self.handle),
                false => sys::cuTexObjectDestroy(self.handle),
            }
        };
    }
}

/// Returns the driver's text for a code, as `cuGetErrorString` returns it.
fn said(code: CUresult) -> String {
    crate::text(DriverError(code))
}

/// Checks that a call fails with this code, and that its text contains these words.
#[track_caller]
fn refused<T>(result: Result<T, CUresult>, code: CUresult, words: &str) {
    let Err(found) = result else { panic!("no error, expected {code:?} with `{words}`") };
    let text = said(found);
    assert!(
        found == code && text.contains(words),
        "expected {code:?} with `{words}`, found {found:?}: {text}"
    );
}

fn host<T>(values: &[T]) -> *const c_void {
    values.as_ptr().cast()
}
