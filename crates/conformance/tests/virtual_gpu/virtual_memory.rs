//! Tests virtual memory management: reserved addresses, memory that is mapped there, and who may access it.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUmemAccess_flags_enum as Access, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle as Handle, CUmemLocation, CUmemLocationType, CUresult,
};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::untracked;
use crate::{contains, fails, text};

/// `store` writes each element's index into an array of 32-bit numbers, and `add` adds 1 to each element.
const PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 to)
{
    .reg .b64 %rd<4>; .reg .b32 %r<5>;
    ld.param.u64 %rd1, [to];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
}
.visible .entry add(.param .u64 to)
{
    .reg .b64 %rd<4>; .reg .b32 %r<6>;
    ld.param.u64 %rd1, [to];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
    ret;
}
";

/// The granularity, in bytes and in elements.
const PART: usize = 2 << 20;
const ELEMENTS: usize = PART / size_of::<u32>();

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("virtual_memory::a_buffer_grows_and_keeps_its_bytes", grows),
        Check::new("virtual_memory::unmapped_memory_keeps_its_bytes", moves),
        Check::new("virtual_memory::memory_lives_as_long_as_something_needs_it", lives),
        Check::new("virtual_memory::an_address_without_memory_is_illegal", nothing_mapped),
        Check::new("virtual_memory::a_kernel_that_goes_past_the_memory_is_reported", past_the_end),
        Check::new("virtual_memory::memory_without_access_is_illegal", no_access),
        Check::new("virtual_memory::memory_of_another_gpu_is_out_of_reach_without_access", another_gpu),
        Check::new("virtual_memory::a_pool_belongs_to_its_gpu", pools),
        Check::new("virtual_memory::bytes_never_written_are_reported", unwritten),
        Check::new("virtual_memory::streams_race_in_mapped_memory", races),
        Check::new("virtual_memory::wrong_arguments_are_refused", refused),
    ]
}

fn location(gpu: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu }
}

fn properties(gpu: i32) -> CUmemAllocationProp {
    // SAFETY: zeros are valid in all fields.
    let zeros: CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(gpu),
        ..zeros
    }
}

/// Reserves addresses for this many parts.
fn reserve(parts: usize) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: the address is writable.
    unsafe { sys::cuMemAddressReserve(&mut address, parts * PART, 0, 0, 0) }.result()?;
    Ok(address)
}

fn create(gpu: i32, bytes: usize) -> Result<Handle, DriverError> {
    let mut handle = 0;
    // SAFETY: the handle is writable, and the properties are readable.
    unsafe { sys::cuMemCreate(&mut handle, bytes, &properties(gpu), 0) }.result()?;
    Ok(handle)
}

fn map(address: u64, bytes: usize, handle: Handle) -> Result<(), DriverError> {
    // SAFETY: wrong arguments are refused.
    unsafe { sys::cuMemMap(address, bytes, 0, handle, 0) }.result()
}

fn unmap(address: u64, bytes: usize) -> Result<(), DriverError> {
    // SAFETY: wrong arguments are refused.
    unsafe { sys::cuMemUnmap(address, bytes) }.result()
}

fn set_access(address: u64, bytes: usize, gpu: i32, flags: Access) -> Result<(), DriverError> {
    let description = CUmemAccessDesc { location: location(gpu), flags };
    // SAFETY: the description is readable.
    unsafe { sys::cuMemSetAccess(address, bytes, &description, 1) }.result()
}

fn release(handle: Handle) -> Result<(), DriverError> {
    // SAFETY: wrong arguments are refused.
    unsafe { sys::cuMemRelease(handle) }.result()
}

const ALL: Access = Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const NONE: Access = Access::CU_MEM_ACCESS_FLAGS_PROT_NONE;

/// Maps a new part at an address, and lets its GPU access it. Only the mapping keeps the part.
fn extend(address: u64, gpu: i32) -> Result<(), DriverError> {
    let handle = create(gpu, PART)?;
    map(address, PART, handle)?;
    set_access(address, PART, gpu, ALL)?;
    release(handle)
}

struct Kernels {
    store: CudaFunction,
    add: CudaFunction,
}

impl Kernels {
    fn load(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        let module = context.load_module(Ptx::from_src(PTX))?;
        Ok(Self { store: module.load_function("store")?, add: module.load_function("add")? })
    }
}

/// Runs a kernel on this many elements.
fn run(stream: &CudaStream, kernel: &CudaFunction, address: u64, elements: usize) -> Result<(), DriverError> {
    let config =
        LaunchConfig { grid_dim: (elements as u32 / 256, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes an address. What it accesses is what these tests are about.
    unsafe { stream.launch_builder(kernel).arg(&address).launch(config) }?;
    stream.synchronize()
}

fn read(address: u64, elements: usize) -> Result<Vec<u32>, DriverError> {
    let mut numbers = vec![0_u32; elements];
    // SAFETY: the vector has room for these bytes.
    unsafe { sys::cuMemcpyDtoH_v2(numbers.as_mut_ptr().cast(), address, elements * size_of::<u32>()) }
        .result()?;
    Ok(numbers)
}

fn grows() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (stream, kernels) = (context.new_stream()?, Kernels::load(&context)?);
    let free = || cudarc::driver::result::mem_get_info().map(|(free, _)| free);
    let at_first = free()?;
    let address = reserve(3)?;
    assert_eq!((address % PART as u64, free()?), (0, at_first));
    extend(address, 0)?;
    extend(address + PART as u64, 0)?;
    assert_eq!(free()?, at_first - 2 * PART);
    // One kernel and one copy go across the boundary.
    run(&stream, &kernels.store, address, 2 * ELEMENTS)?;
    extend(address + 2 * PART as u64, 0)?;
    run(&stream, &kernels.add, address + 4, 2 * ELEMENTS - 256)?;
    let numbers = read(address, 2 * ELEMENTS)?;
    let added = 1..1 + 2 * ELEMENTS - 256;
    let expected = (0..2 * ELEMENTS).map(|index| index as u32 + u32::from(added.contains(&index)));
    assert!(numbers.into_iter().eq(expected));

    let (mut base, mut bytes) = (0, 0);
    let inside = address + PART as u64 + 5;
    // SAFETY: both results are writable.
    unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, inside) }.result()?;
    assert_eq!((base, bytes), (address + PART as u64, PART));
    unmap(address, 3 * PART)?;
    // SAFETY: nothing is mapped there anymore.
    unsafe { sys::cuMemAddressFree(address, 3 * PART) }.result()?;
    assert_eq!(free()?, at_first);
    Ok(())
}

fn moves() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (stream, kernels) = (context.new_stream()?, Kernels::load(&context)?);
    let address = reserve(4)?;
    let handles = [create(0, PART)?, create(0, PART)?, create(0, PART)?];
    let at = |part: usize| address + (part * PART) as u64;
    for (part, &handle) in handles.iter().enumerate() {
        map(at(part), PART, handle)?;
    }
    set_access(address, 3 * PART, 0, ALL)?;
    run(&stream, &kernels.store, address, 3 * ELEMENTS)?;
    unmap(at(1), PART)?;
    assert_eq!(read(at(0), ELEMENTS)?[ELEMENTS - 1], ELEMENTS as u32 - 1);
    assert_eq!(read(at(2), ELEMENTS)?[0], 2 * ELEMENTS as u32);
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    fails(read(at(1), 1), bad, &["no GPU can access", "no memory is mapped there: cuMemMap maps it"]);
    // The memory in the middle now comes last, and is next to its former neighbor.
    map(at(3), PART, handles[1])?;
    fails(read(at(3), 1), bad, &["cuMemSetAccess allows it"]);
    set_access(at(3), PART, 0, ALL)?;
    let numbers = read(at(2), 2 * ELEMENTS)?;
    assert_eq!([numbers[0], numbers[ELEMENTS]], [2 * ELEMENTS as u32, ELEMENTS as u32]);
    // A part of a larger piece of memory can be mapped, and the rest keeps its bytes, too.
    let large = create(0, 2 * PART)?;
    map(at(1), PART, large)?;
    set_access(at(1), PART, 0, ALL)?;
    run(&stream, &kernels.store, at(1), ELEMENTS)?;
    set_access(at(1), PART, 0, NONE)?;
    unmap(at(1), PART)?;
    let elsewhere = reserve(2)?;
    map(elsewhere, 2 * PART, large)?;
    set_access(elsewhere, 2 * PART, 0, ALL)?;
    assert_eq!(read(elsewhere, ELEMENTS)?[7], 7);
    Ok(())
}

fn lives() -> anyhow::Result<()> {
    let _context = CudaContext::new(1)?;
    let free = || cudarc::driver::result::mem_get_info().map(|(free, _)| free);
    let at_first = free()?;
    let address = reserve(1)?;
    let handle = create(1, PART)?;
    map(address, PART, handle)?;
    release(handle)?;
    fails(
        release(handle),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        &["is not a handle of memory, or was released"],
    );
    assert_eq!(free()?, at_first - PART);
    let mut retained = 0;
    // SAFETY: the handle is writable, and the address is that of a mapping.
    unsafe { sys::cuMemRetainAllocationHandle(&mut retained, (address + 9) as *mut c_void) }.result()?;
    assert_eq!(retained, handle);
    let mut known = properties(0);
    // SAFETY: the properties are writable.
    unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&mut known, retained) }.result()?;
    assert_eq!(known.location.id, 1);
    unmap(address, PART)?;
    assert_eq!(free()?, at_first - PART);
    release(retained)?;
    assert_eq!(free()?, at_first);
    Ok(())
}

fn nothing_mapped() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (stream, kernels) = (context.new_stream()?, Kernels::load(&context)?);
    let address = reserve(4)?;
    extend(address, 0)?;
    let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    let words = ["byte 4194304 of the 8388608 bytes reserved here", "no memory is mapped there"];
    fails(run(&stream, &kernels.store, address + 2 * PART as u64, 256), illegal, &words);
    Ok(())
}

fn past_the_end() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (stream, kernels) = (context.new_stream()?, Kernels::load(&context)?);
    let address = reserve(2)?;
    extend(address, 0)?;
    let ran = run(&stream, &kernels.store, address, ELEMENTS + 256);
    let words = ["goes out of bounds", "just past the end of the buffer of 2 MiB"];
    fails(ran, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

fn no_access() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (stream, kernels) = (context.new_stream()?, Kernels::load(&context)?);
    let address = reserve(1)?;
    map(address, PART, create(0, PART)?)?;
    let mut flags = 7;
    // SAFETY: the flags are writable, and the location is readable.
    unsafe { sys::cuMemGetAccess(&mut flags, &location(0), address) }.result()?;
    assert_eq!(flags, 0);
    let words = ["memory of GPU 0, created here, is mapped there", "cuMemSetAccess allows it"];
    fails(run(&stream, &kernels.store, address, 256), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

fn another_gpu() -> anyhow::Result<()> {
    let contexts = [CudaContext::new(0)?, CudaContext::new(1)?];
    let address = reserve(1)?;
    extend(address, 1)?;
    for (access, flags) in [(ALL, 3), (NONE, 0)] {
        set_access(address, PART, 0, access)?;
        for (gpu, flags) in [(0, flags), (1, 3)] {
            let mut known = 7;
            // SAFETY: the flags are writable, and the location is readable.
            unsafe { sys::cuMemGetAccess(&mut known, &location(gpu), address) }.result()?;
            assert_eq!(known, flags, "GPU {gpu}");
        }
    }
    for (gpu, context) in contexts.iter().enumerate().rev() {
        let (stream, kernels) = (context.new_stream()?, Kernels::load(context)?);
        let ran = run(&stream, &kernels.store, address, ELEMENTS);
        match gpu {
            1 => {
                ran?;
                assert_eq!(read(address, ELEMENTS)?[5], 5);
            }
            _ => fails(ran, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["it is in the buffer of 2 MiB on GPU 1"]),
        }
    }
    Ok(())
}

fn pools() -> anyhow::Result<()> {
    let _context = CudaContext::new(1)?;
    let mut pool = null_mut();
    // SAFETY: the pool is writable.
    unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, 1) }.result()?;
    let set = |gpu, flags| {
        let description = CUmemAccessDesc { location: location(gpu), flags };
        // SAFETY: the description is readable.
        unsafe { sys::cuMemPoolSetAccess(pool, &description, 1) }.result()
    };
    set(1, ALL)?;
    set(0, ALL)?;
    set(2, ALL)?;
    set(2, NONE)?;
    fails(set(1, NONE), CUresult::CUDA_ERROR_NOT_SUPPORTED, &["excludes the pool's own GPU"]);
    for (gpu, expected) in [(0, ALL), (1, ALL), (2, NONE)] {
        let mut flags = Access::CU_MEM_ACCESS_FLAGS_PROT_READ;
        // SAFETY: the flags are writable, and the location is readable.
        unsafe { sys::cuMemPoolGetAccess(&mut flags, pool, &mut location(gpu)) }.result()?;
        assert_eq!(flags, expected, "GPU {gpu}");
    }
    Ok(())
}

fn unwritten() -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let (stream, kernels) = (context.new_stream()?, Kernels::load(&context)?);
    let address = reserve(2)?;
    extend(address, 0)?;
    run(&stream, &kernels.store, address, ELEMENTS)?;
    extend(address + PART as u64, 0)?;
    run(&stream, &kernels.add, address, ELEMENTS)?;
    let Err(error) = run(&stream, &kernels.add, address, ELEMENTS + 256) else {
        anyhow::bail!("the second part has never been written")
    };
    contains(
        &text(error),
        &["reads bytes that nothing wrote", "bytes 2097152..2097156 of the buffer of 4 MiB"],
    );
    Ok(())
}

fn races() -> anyhow::Result<()> {
    let context = untracked(0);
    let (streams, kernels) = ([context.new_stream()?, context.new_stream()?], Kernels::load(&context)?);
    let address = reserve(1)?;
    extend(address, 0)?;
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    for stream in &streams {
        // SAFETY: the kernel takes an address.
        unsafe { stream.launch_builder(&kernels.store).arg(&address).launch(config) }?;
    }
    let Err(error) = streams.iter().try_for_each(|stream| stream.synchronize()) else {
        anyhow::bail!("two kernels write the same bytes, and nothing orders them")
    };
    contains(&text(error), &["data race on GPU 0", "stream 1", "stream 2"]);
    Ok(())
}

fn refused() -> anyhow::Result<()> {
    let _context = CudaContext::new(0)?;
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let address = reserve(4)?;
    let end = address + 4 * PART as u64;
    let handle = create(0, PART)?;
    fails(create(0, PART / 2), bad, &["must be a multiple of", "0x100000"]);
    fails(create(0, 0), bad, &["the size is 0"]);
    fails(create(99, PART), CUresult::CUDA_ERROR_INVALID_DEVICE, &["there is no GPU 99"]);
    fails(create(0, 1 << 40), CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["bytes on GPU 0, but only"]);
    fails(map(address + 4096, PART, handle), bad, &["the address must be a multiple"]);
    fails(map(end, PART, handle), bad, &["is not reserved"]);
    fails(map(end - PART as u64, 2 * PART, create(0, 2 * PART)?), bad, &["is not reserved"]);
    fails(map(address, 2 * PART, handle), bad, &["memory that has 2097152"]);
    fails(map(address, PART, 77), bad, &["0x4d is not a handle of memory"]);
    fails(unmap(address, PART), bad, &["nothing is mapped at"]);
    fails(set_access(address, PART, 0, ALL), bad, &["nothing is mapped at"]);
    map(address, PART, handle)?;
    fails(map(address, PART, create(0, PART)?), bad, &["memory is already mapped at"]);
    let twice = map(address + PART as u64, PART, handle);
    fails(twice, CUresult::CUDA_ERROR_NOT_SUPPORTED, &["the same memory at two addresses"]);
    map(address + PART as u64, 2 * PART, create(0, 2 * PART)?)?;
    fails(unmap(address, 2 * PART), bad, &["has only a part of the mapping"]);
    fails(unmap(address + PART as u64 + 4096, PART), bad, &["has only a part of the mapping"]);
    let read_only = set_access(address, PART, 0, Access::CU_MEM_ACCESS_FLAGS_PROT_READ);
    fails(read_only, CUresult::CUDA_ERROR_NOT_SUPPORTED, &["for reading only"]);
    // SAFETY: null and wrong values are refused.
    unsafe {
        fails(sys::cuMemAddressFree(address, 4 * PART).result(), bad, &["memory is still mapped"]);
        fails(
            sys::cuMemAddressFree(address, PART).result(),
            bad,
            &["are not what cuMemAddressReserve reserved"],
        );
        fails(sys::cuMemFree_v2(address).result(), bad, &["unmap its memory with cuMemUnmap"]);
        let mut result = 0;
        fails(sys::cuMemAddressReserve(&mut result, 5, 0, 0, 0).result(), bad, &["multiple of 4096"]);
        fails(sys::cuMemAddressReserve(&mut result, PART, 3, 0, 0).result(), bad, &["a power of two, not 3"]);
        fails(sys::cuMemAddressReserve(&mut result, PART, 0, 0, 1).result(), bad, &["the flags must be 0"]);
        fails(sys::cuMemAddressReserve(null_mut(), PART, 0, 0, 0).result(), bad, &["null"]);
        let too_many = sys::cuMemAddressReserve(&mut result, 1 << 50, 0, 0, 0).result();
        fails(too_many, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["addresses are left"]);
        fails(sys::cuMemMap(address, PART, 1, handle, 0).result(), bad, &["the offset must be 0"]);
    }
    Ok(())
}
