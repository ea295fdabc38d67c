//! Managed memory, which the host and every GPU use at the same addresses.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemAttach_flags, CUresult};
use cudarc::driver::{CudaStream, DevicePtr, DeviceSlice, DriverError, PushKernelArg, UnifiedSlice, result};
use cudarc::nccl::sys::ncclDataType_t;
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::fails;
use crate::raw::{Arguments, Function, Rank, communicators, floats, in_group};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("managed::host_and_gpus_use_the_same_bytes", same_bytes),
        Check::new("managed::copies_and_sets_take_it", copies_and_sets),
        Check::new("managed::it_is_attached_prefetched_and_advised", attached),
        Check::new("managed::advice_and_prefetches_can_be_read", advised),
        Check::new("managed::a_kernel_out_of_its_bounds", out_of_bounds),
        Check::new("managed::two_streams_race_on_it", || two_streams(false)),
        Check::new("managed::two_streams_that_wait_don_t", || two_streams(true)),
        Check::new("managed::nccl_takes_it", collectives),
        Check::new("managed::freed_memory_is_no_one_s", freed),
        Check::new("managed::bad_arguments_are_named", bad_arguments),
    ]
}

/// A kernel that adds 1 to each 4-byte element of one block.
const INCREMENT: &str = r#"
.version 8.0
.target sm_70
.address_size 64
.visible .entry increment(.param .u64 data)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.u32 %r2, [%rd3];
    add.u32 %r3, %r2, 1;
    st.u32 [%rd3], %r3;
    ret;
}
"#;

fn stream(gpu: usize) -> anyhow::Result<Arc<CudaStream>> {
    Ok(untracked(gpu).new_stream()?)
}

fn allocate(stream: &CudaStream, len: usize) -> anyhow::Result<UnifiedSlice<u32>> {
    // SAFETY: any bits are a valid number.
    Ok(unsafe { stream.context().alloc_unified(len, true) }?)
}

/// "NCCL will accept any CUDA pointers that are accessible from the CUDA device" (its User Guide, "Data Pointers"): two
/// ranks sum data from the host and exchange halves, and the host reads the result.
fn collectives() -> anyhow::Result<()> {
    let comms = communicators(&[0, 1]).unwrap();
    let ranks = [Rank::of(comms[0], stream(0)?), Rank::of(comms[1], stream(1)?)];
    let buffers: Vec<_> = ranks.iter().map(|rank| allocate(&rank.stream, 4)).collect::<Result<_, _>>()?;
    let at = |rank: usize, first: u64| buffers[rank].device_ptr(&ranks[rank].stream).0 + 4 * first;
    for (rank, buffer) in buffers.iter().enumerate() {
        // SAFETY: nothing has been enqueued yet, and the memory holds four numbers.
        unsafe { (at(rank, 0) as *mut [u32; 4]).write([rank as u32 + 1, 10, 20, 30]) };
        assert_eq!(buffer.len(), 4);
    }
    let with = Arguments { data_type: ncclDataType_t::ncclUint32, ..floats(4) };
    in_group(|| (0..2).for_each(|r| ranks[r].call(Function::AllReduce, at(r, 0), at(r, 0), with).unwrap()))
        .unwrap();
    in_group(|| {
        for (r, rank) in ranks.iter().enumerate() {
            let half = Arguments { count: 2, root: 1 - r as i32, ..with };
            rank.call(Function::Send, at(r, 2 * r as u64), 0, half).unwrap();
            rank.call(Function::Recv, 0, at(r, 2 - 2 * r as u64), half).unwrap();
        }
    })
    .unwrap();
    for (r, rank) in ranks.iter().enumerate() {
        rank.stream.synchronize()?;
        // SAFETY: all enqueued work is done.
        assert_eq!(unsafe { (at(r, 0) as *const [u32; 4]).read() }, [3, 20, 40, 60]);
    }
    let short = ranks[0].call(Function::AllReduce, at(0, 1), at(0, 1), with).unwrap_err().1;
    assert!(short.contains("the buffer of 16 bytes in managed memory was allocated"), "{short}");
    Ok(())
}

/// Uses the slice's address, because cudarc would order each use of a `UnifiedSlice` after the previous one and
/// restrict it to one context.
fn increment(stream: &CudaStream, data: &mut UnifiedSlice<u32>, threads: u32) -> anyhow::Result<()> {
    let address = data.device_ptr(data.stream()).0;
    let kernel = stream.context().load_module(Ptx::from_src(INCREMENT))?.load_function("increment")?;
    let shape = shape(1, threads);
    // SAFETY: the kernel takes one pointer.
    unsafe { stream.launch_builder(&kernel).arg(&address).launch(shape) }?;
    Ok(())
}

fn same_bytes() -> anyhow::Result<()> {
    let (first, second) = (stream(0)?, stream(1)?);
    let mut data = allocate(&first, 40)?;
    data.as_mut_slice()?.copy_from_slice(&[10; 40]);
    increment(&first, &mut data, 40)?;
    first.synchronize()?;
    assert_eq!(data.as_slice()?, [11; 40]);
    // The second GPU is not the one where the data was allocated, and has its own memory.
    let own = second.clone_htod(&[1_u8; 100])?;
    increment(&second, &mut data, 40)?;
    second.synchronize()?;
    assert_eq!(data.as_slice()?, [12; 40]);
    assert_eq!(second.clone_dtoh(&own)?, [1; 100]);
    Ok(())
}

fn copies_and_sets() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let mut data = allocate(&stream, 1000)?;
    stream.memset_zeros(&mut data)?;
    stream.synchronize()?;
    assert_eq!(data.as_slice()?, [0; 1000]);
    stream.memcpy_htod(&[7; 1000], &mut data)?;
    let mut of_gpu = stream.alloc_zeros::<u32>(1000)?;
    stream.memcpy_dtod(&data, &mut of_gpu)?;
    assert_eq!(stream.clone_dtoh(&of_gpu)?, [7; 1000]);
    assert_eq!(stream.clone_dtoh(&data)?, [7; 1000]);
    // Managed memory is also host memory; here it is the source of a copy.
    data.as_mut_slice()?.fill(8);
    stream.memcpy_htod(data.as_slice()?, &mut of_gpu)?;
    assert_eq!(stream.clone_dtoh(&of_gpu)?, [8; 1000]);
    Ok(())
}

fn attached() -> anyhow::Result<()> {
    let stream = stream(0)?;
    let mut data = allocate(&stream, 64)?;
    for mode in [
        CUmemAttach_flags::CU_MEM_ATTACH_SINGLE,
        CUmemAttach_flags::CU_MEM_ATTACH_HOST,
        CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL,
    ] {
        data.attach(&stream, mode)?;
        data.prefetch()?;
        data.as_mut_slice()?.fill(3);
    }
    let address = data.device_ptr(&stream).0;
    // SAFETY: the range covers exactly `data`.
    unsafe {
        let on_gpu = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
        let advice = sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
        result::mem_advise(address, 256, advice, on_gpu)?;
    }
    stream.synchronize()?;
    assert_eq!(data.as_slice()?, [3; 64]);
    Ok(())
}

/// Returns `N` numbers that an attribute of a range has.
fn attribute<const N: usize>(
    kind: sys::CUmem_range_attribute,
    address: u64,
    bytes: usize,
) -> Result<[i32; N], DriverError> {
    let mut found = [77; N];
    // SAFETY: the result has room for this many bytes.
    let code = unsafe { sys::cuMemRangeGetAttribute((&raw mut found).cast(), 4 * N, kind, address, bytes) };
    code.result().map(|()| found)
}

fn advised() -> anyhow::Result<()> {
    use sys::CUmem_range_attribute::*;
    let stream = stream(0)?;
    stream.context().bind_to_thread()?;
    let location = |kind, id| sys::CUmemLocation { type_: kind, id };
    let on_gpu = |id| location(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id);
    let on_node = location(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    use sys::CUmem_advise::*;
    // SAFETY: the ranges are in the memory, which is freed once.
    unsafe {
        let at = result::malloc_managed(8192, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL)?;
        let preferred = |bytes| attribute::<1>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, bytes);
        assert_eq!(preferred(8192)?, [-2]);
        result::mem_advise(at, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_gpu(1))?;
        assert_eq!((preferred(4096)?, preferred(4097)?), ([1], [-2]));
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, at, 1)?, [1]);
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, at, 8192)?, [0]);
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, at, 1)?, [1]);
        result::mem_advise(at, 1, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, on_gpu(1))?;
        assert_eq!(preferred(4096)?, [-2]);
        result::mem_advise(at, 4097, CU_MEM_ADVISE_SET_READ_MOSTLY, on_gpu(0))?;
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, 8192)?, [1]);
        for gpu in [0, 1] {
            result::mem_advise(at, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, on_gpu(gpu))?;
        }
        result::mem_advise(at + 4096, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, on_gpu(1))?;
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, 4096)?, [0, 1, -2]);
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, 8192)?, [1, -2]);
        result::mem_prefetch_async(at, 8192, on_gpu(1), stream.cu_stream())?;
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, 8192)?, [1]);
        result::mem_prefetch_async(at, 8192, on_node, stream.cu_stream())?;
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, 8192)?, [-1]);
        assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, at, 8192)?, [3]);
        let (mut one, mut two) = (77_i32, [77_i32; 2]);
        let mut to = [(&raw mut one).cast(), (&raw mut two).cast()];
        let mut kinds = [CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY];
        let mut rooms = [4, 8];
        let lists = (to.as_mut_ptr(), rooms.as_mut_ptr(), kinds.as_mut_ptr());
        sys::cuMemRangeGetAttributes(lists.0, lists.1, lists.2, 2, at, 8192).result()?;
        assert_eq!((one, two), (1, [1, -2]));
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let no_room = attribute::<2>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, 4).map(drop);
        fails(no_room, invalid, &["needs room for 4 bytes, not 8"]);
        fails(preferred(8193).map(drop), invalid, &["8193 bytes"]);
        fails(
            attribute::<1>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 64, 4).map(drop),
            invalid,
            &["not managed memory"],
        );
        stream.synchronize()?;
        result::memory_free(at)?;
    }
    Ok(())
}

fn out_of_bounds() -> anyhow::Result<()> {
    let stream = stream(1)?;
    let mut data = allocate(&stream, 32)?;
    increment(&stream, &mut data, 33)?;
    let words = [
        "kernel `increment` goes out of bounds",
        "128 bytes",
        "crates/conformance/tests/virtual_gpu/managed.rs:",
        "thread (32,0,0)",
    ];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

fn two_streams(waits: bool) -> anyhow::Result<()> {
    let one = stream(0)?;
    let other = one.context().new_stream()?;
    let mut data = allocate(&one, 32)?;
    increment(&one, &mut data, 32)?;
    if waits {
        other.wait(&one.record_event(None)?)?;
    }
    increment(&other, &mut data, 32)?;
    let done = other.synchronize();
    if waits {
        return Ok(done?);
    }
    let words = ["data race in managed memory", "the buffer was allocated here", "kernel `increment`"];
    fails(done, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn freed() -> anyhow::Result<()> {
    let stream = stream(0)?;
    stream.context().bind_to_thread()?;
    // SAFETY: the address is only passed to calls that check it.
    unsafe {
        let address = result::malloc_managed(4096, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL)?;
        *(address as *mut u8) = 1;
        result::memory_free(address)?;
        let words = ["a pointer that can't be freed", "in managed memory was allocated", "managed.rs:"];
        fails(result::memory_free(address), CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        let set = result::memset_d8_async(address, 0, 16, stream.cu_stream());
        fails(set, CUresult::CUDA_ERROR_INVALID_VALUE, &["memory that has been freed"]);
        let next = result::malloc_managed(4096, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL)?;
        assert_eq!(*(next as *const u8), 0);
    }
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let stream = stream(0)?;
    stream.context().bind_to_thread()?;
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let own = stream.alloc_zeros::<u8>(64)?;
    let gpu_address = own.device_ptr(&stream).0;
    let location = |kind, id| sys::CUmemLocation { type_: kind, id };
    let gpu = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let nowhere = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    let advice = sys::CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY;
    // SAFETY: each call is refused because of its arguments.
    unsafe {
        let global = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
        let single = CUmemAttach_flags::CU_MEM_ATTACH_SINGLE;
        fails(result::malloc_managed(0, global), invalid, &["0 bytes"]);
        fails(result::malloc_managed(64, single), invalid, &["CU_MEM_ATTACH_GLOBAL or _HOST"]);
        let too_much = result::malloc_managed(1 << 60, global);
        fails(too_much, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["managed memory"]);

        let address = result::malloc_managed(64, global)?;
        let handle = stream.cu_stream();
        let attach =
            |address, bytes, handle| result::stream::attach_mem_async(handle, address, bytes, single);
        fails(attach(gpu_address, 0, handle), invalid, &["not the start of managed memory"]);
        fails(attach(address + 4, 0, handle), invalid, &["not the start of managed memory"]);
        fails(attach(address, 32, handle), invalid, &["32 bytes of 64 bytes"]);
        fails(attach(address, 64, std::ptr::null_mut()), invalid, &["legacy default stream"]);

        let prefetch = |address, bytes, to| result::mem_prefetch_async(address, bytes, to, handle);
        fails(prefetch(gpu_address, 64, location(gpu, 0)), invalid, &["not managed memory"]);
        fails(prefetch(address, 0, location(gpu, 0)), invalid, &["0 bytes"]);
        fails(prefetch(address, 65, location(gpu, 0)), invalid, &["65 bytes"]);
        fails(prefetch(address, 64, location(nowhere, 0)), invalid, &["CUmemLocationType"]);
        let no_gpu = CUresult::CUDA_ERROR_INVALID_DEVICE;
        fails(prefetch(address, 64, location(gpu, 8)), invalid, &["there is no GPU 8"]);
        fails(result::mem_advise(address, 64, advice, location(gpu, 9)), no_gpu, &["there is no GPU 9"]);
        // Some kinds of advice ignore the location.
        let read_mostly = sys::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
        result::mem_advise(address, 64, read_mostly, location(nowhere, 9))?;
    }
    Ok(())
}
