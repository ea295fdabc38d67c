//! Streams that write numbers in memory, and wait for them, and streams' attributes.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys::{self, CUstream, CUstreamBatchMemOpType_enum as Kind};
use cudarc::driver::{CudaSlice, DriverError, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::fails;
use crate::raw::address;

use sys::CUresult::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_NOT_SUPPORTED,
};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("stream_values::a_wait_orders_what_the_writer_did", ordered),
        Check::new("stream_values::without_the_wait_the_streams_race", unordered),
        Check::new("stream_values::what_follows_the_write_is_not_ordered", after_the_write),
        Check::new("stream_values::a_counter_orders_what_each_kernel_did_before", counted),
        Check::new("stream_values::every_condition_and_size", conditions),
        Check::new("stream_values::a_wait_for_each_condition_waits", unmet_conditions),
        Check::new("stream_values::a_batch_runs_in_order", batch),
        Check::new("stream_values::a_copy_can_end_a_wait", by_copy),
        Check::new("stream_values::the_host_can_end_a_wait", by_host),
        Check::new("stream_values::another_thread_can_end_a_wait", by_thread),
        Check::new("stream_values::a_wait_that_nothing_ends_is_reported", never),
        Check::new("stream_values::two_streams_that_wait_for_each_other_are_reported", cycle),
        Check::new("stream_values::a_graph_writes_and_waits", in_graph),
        Check::new("stream_values::bad_arguments_are_refused", refused),
        Check::new("stream_attributes::are_kept_and_copied", attributes),
    ]
}

fn write(stream: CUstream, at: u64, value: u32) -> Result<(), DriverError> {
    // SAFETY: the driver checks the address.
    unsafe { sys::cuStreamWriteValue32_v2(stream, at, value, 0) }.result()
}

fn wait(stream: CUstream, at: u64, value: u32) -> Result<(), DriverError> {
    // SAFETY: as above.
    unsafe { sys::cuStreamWaitValue32_v2(stream, at, value, 0) }.result()
}

/// Two streams, a buffer of four numbers, and a flag of 8 bytes, all zero.
struct Start {
    streams: [std::sync::Arc<cudarc::driver::CudaStream>; 2],
    buffer: CudaSlice<u32>,
    flag: CudaSlice<u32>,
}

impl Start {
    fn new() -> anyhow::Result<Self> {
        let context = untracked(0);
        let streams = [context.new_stream()?, context.new_stream()?];
        let (buffer, flag) = (streams[0].alloc_zeros::<u32>(4)?, streams[0].alloc_zeros::<u32>(2)?);
        streams[0].synchronize()?;
        Ok(Self { streams, buffer, flag })
    }

    fn raw(&self) -> [CUstream; 2] {
        self.streams.each_ref().map(|stream| stream.cu_stream())
    }
}

fn ordered() -> anyhow::Result<()> {
    let mut start = Start::new()?;
    let ([first, second], at) = (start.raw(), address(&start.flag));
    // The wait comes first, and its stream goes on once the other one has written.
    wait(second, at, 1)?;
    start.streams[0].memcpy_htod(&[5; 4], &mut start.buffer)?;
    write(first, at, 1)?;
    assert_eq!(start.streams[1].clone_dtoh(&start.buffer)?, [5; 4]);
    Ok(())
}

fn unordered() -> anyhow::Result<()> {
    let mut start = Start::new()?;
    let ([first, _], at) = (start.raw(), address(&start.flag));
    start.streams[0].memcpy_htod(&[5; 4], &mut start.buffer)?;
    write(first, at, 1)?;
    fails(start.streams[1].clone_dtoh(&start.buffer), CUDA_ERROR_LAUNCH_FAILED, &["data race"]);
    Ok(())
}

fn after_the_write() -> anyhow::Result<()> {
    let mut start = Start::new()?;
    let ([first, second], at) = (start.raw(), address(&start.flag));
    write(first, at, 1)?;
    start.streams[0].memcpy_htod(&[5; 4], &mut start.buffer)?;
    // The copy is done on the virtual GPU, but nothing says so.
    wait(second, at, 1)?;
    fails(start.streams[1].clone_dtoh(&start.buffer), CUDA_ERROR_LAUNCH_FAILED, &["data race"]);
    Ok(())
}

/// Each of two streams writes a number, and increments a counter. A third waits until the counter is 2.
fn counted() -> anyhow::Result<()> {
    const ADD: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 counter)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [counter];
    red.global.add.u32 [%rd1], 1;
    ret;
}";
    let mut start = Start::new()?;
    let context = start.streams[0].context().clone();
    let third = context.new_stream()?;
    let add = context.load_module(Ptx::from_src(ADD))?.load_function("add")?;
    wait(third.cu_stream(), address(&start.flag), 2)?;
    for (at, stream) in start.streams.iter().enumerate() {
        stream.memcpy_htod(&[at as u32 + 6], &mut start.buffer.slice_mut(at..at + 1))?;
        // SAFETY: the kernel increments a number in the buffer.
        unsafe { stream.launch_builder(&add).arg(&mut start.flag).launch(shape(1, 1)) }?;
    }
    assert_eq!(third.clone_dtoh(&start.buffer)?, [6, 7, 0, 0]);
    Ok(())
}

fn conditions() -> anyhow::Result<()> {
    let start = Start::new()?;
    let ([first, _], at) = (start.raw(), address(&start.flag));
    write(first, at, 6)?;
    for (value, flags) in [(6, 0), (u32::MAX, 0), (6, 1), (2, 2), (1, 3)] {
        // SAFETY: the driver checks the address.
        unsafe { sys::cuStreamWaitValue32_v2(first, at, value, flags) }.result()?;
    }
    // SAFETY: as above.
    unsafe {
        sys::cuStreamWriteValue64_v2(first, at, 1 << 40, 0).result()?;
        sys::cuStreamWaitValue64_v2(first, at, 1 << 40, 1).result()?;
    }
    assert_eq!(start.streams[0].clone_dtoh(&start.flag)?, [0, 1 << 8]);
    Ok(())
}

/// Each wait starts with a number that does not meet its condition, and ends with one that does.
fn unmet_conditions() -> anyhow::Result<()> {
    let start = Start::new()?;
    let ([first, second], at) = (start.raw(), address(&start.flag));
    for (value, flags, unmet, met) in [(7, 0, 6, 7), (5, 1, 6, 5), (1, 2, 6, 1), (1, 3, u32::MAX, 5)] {
        write(first, at, unmet)?;
        start.streams[0].synchronize()?;
        // SAFETY: the driver checks the address and the stream.
        unsafe { sys::cuStreamWaitValue32_v2(second, at, value, flags) }.result()?;
        // SAFETY: as above.
        let state = unsafe { sys::cuStreamQuery(second) };
        assert_eq!(state, sys::CUresult::CUDA_ERROR_NOT_READY, "wait for {value} with flags {flags}");
        write(first, at, met)?;
        start.streams[1].synchronize()?;
    }
    Ok(())
}

fn operation(kind: Kind, at: u64, value: u32) -> sys::CUstreamBatchMemOpParams {
    // SAFETY: zeros are valid in all fields except for the operation, which is set.
    unsafe {
        let mut it = MaybeUninit::<sys::CUstreamBatchMemOpParams>::zeroed();
        let fields = &raw mut (*it.as_mut_ptr()).writeValue;
        (*fields).operation = kind;
        (*fields).address = at;
        (*fields).__bindgen_anon_1.value = value;
        it.assume_init()
    }
}

fn batch() -> anyhow::Result<()> {
    let start = Start::new()?;
    let ([first, second], at) = (start.raw(), address(&start.flag));
    let mut all = [
        operation(Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32, at, 1),
        operation(Kind::CU_STREAM_MEM_OP_BARRIER, 0, 0),
        operation(Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32, at + 4, 2),
    ];
    // SAFETY: the operations are readable.
    unsafe { sys::cuStreamBatchMemOp_v2(second, 3, all.as_mut_ptr(), 0) }.result()?;
    write(first, at, 1)?;
    wait(first, at + 4, 2)?;
    assert_eq!(start.streams[0].clone_dtoh(&start.flag)?, [1, 2]);
    let mut bad = [all[0], operation(Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32, at + 2, 9)];
    // SAFETY: as above.
    let code = unsafe { sys::cuStreamBatchMemOp_v2(first, 2, bad.as_mut_ptr(), 0) };
    fails(code.result(), CUDA_ERROR_INVALID_VALUE, &["must be a multiple of 4"]);
    Ok(())
}

fn by_copy() -> anyhow::Result<()> {
    let mut start = Start::new()?;
    let ([_, second], at) = (start.raw(), address(&start.flag));
    wait(second, at, 3)?;
    start.streams[0].memcpy_htod(&[3, 0], &mut start.flag)?;
    assert_eq!(start.streams[1].clone_dtoh(&start.flag)?, [3, 0]);
    Ok(())
}

fn by_host() -> anyhow::Result<()> {
    let start = Start::new()?;
    let [first, _] = start.raw();
    let mut memory = null_mut();
    // SAFETY: the result is writable.
    unsafe { sys::cuMemHostAlloc(&raw mut memory, 4, 0) }.result()?;
    let flag = memory.cast::<u32>();
    // SAFETY: the memory has room for the number.
    unsafe { flag.write_volatile(0) };
    wait(first, memory as u64, 1)?;
    let place = flag as usize;
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the memory is freed after this thread has ended.
        unsafe { (place as *mut u32).write_volatile(1) };
    });
    start.streams[0].synchronize()?;
    // SAFETY: the memory has room for the number.
    assert_eq!(unsafe { flag.read_volatile() }, 1, "the stream has waited");
    writer.join().unwrap();
    // SAFETY: nothing uses the memory anymore.
    Ok(unsafe { sys::cuMemFreeHost(memory) }.result()?)
}

fn by_thread() -> anyhow::Result<()> {
    let start = Start::new()?;
    let at = address(&start.flag);
    wait(start.raw()[1], at, 1)?;
    let other = start.streams[0].clone();
    let writer = std::thread::spawn(move || {
        other.context().bind_to_thread().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        write(other.cu_stream(), at, 1).unwrap();
    });
    start.streams[1].synchronize()?;
    assert_eq!(start.streams[0].clone_dtoh(&start.flag)?, [1, 0], "the stream has waited");
    writer.join().unwrap();
    Ok(())
}

fn never() -> anyhow::Result<()> {
    let start = Start::new()?;
    let before = std::time::Instant::now();
    wait(start.raw()[1], address(&start.flag), 7)?;
    let words = [
        "stream 2 waits for a number that nothing will write",
        "stream_values.rs:",
        "is 0, but the wait is for at least 7",
    ];
    fails(start.streams[1].synchronize(), CUDA_ERROR_LAUNCH_TIMEOUT, &words);
    assert!(before.elapsed() < crate::TIMEOUT, "this was decided without the timeout");
    Ok(())
}

fn cycle() -> anyhow::Result<()> {
    let start = Start::new()?;
    let ([first, second], at) = (start.raw(), address(&start.flag));
    wait(first, at, 1)?;
    write(first, at + 4, 1)?;
    wait(second, at + 4, 1)?;
    write(second, at, 1)?;
    let words = ["stream 1 waits for a number that nothing will write"];
    fails(start.streams[0].synchronize(), CUDA_ERROR_LAUNCH_TIMEOUT, &words);
    Ok(())
}

fn in_graph() -> anyhow::Result<()> {
    let start = Start::new()?;
    let ([first, second], at) = (start.raw(), address(&start.flag));
    let (mut graph, mut exec) = (null_mut(), null_mut());
    // SAFETY: the results are writable.
    unsafe {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        sys::cuStreamBeginCapture_v2(first, mode).result()?;
        wait(first, at, 1)?;
        write(first, at + 4, 8)?;
        sys::cuStreamEndCapture(first, &raw mut graph).result()?;
        let (mut nodes, mut count) = ([null_mut(); 2], 2);
        sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count).result()?;
        let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        sys::cuGraphNodeGetType(nodes[1], &raw mut kind).result()?;
        assert_eq!((count, kind), (2, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP));
        sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).result()?;
        sys::cuGraphLaunch(exec, first).result()?;
        write(second, at, 1)?;
        start.streams[0].synchronize()?;
        sys::cuGraphExecDestroy(exec).result()?;
        sys::cuGraphDestroy(graph).result()?;
    }
    assert_eq!(start.streams[0].clone_dtoh(&start.flag)?, [1, 8]);
    Ok(())
}

fn refused() -> anyhow::Result<()> {
    let start = Start::new()?;
    let ([first, _], at) = (start.raw(), address(&start.flag));
    fails(write(first, at + 1, 0), CUDA_ERROR_INVALID_VALUE, &["must be a multiple of 4"]);
    fails(wait(first, at + 8, 0), CUDA_ERROR_INVALID_VALUE, &["not all in one buffer"]);
    fails(wait(first, 64, 0), CUDA_ERROR_INVALID_VALUE, &["not a GPU address"]);
    let mut managed = 0;
    // SAFETY: the driver checks the arguments.
    unsafe {
        sys::cuMemAllocManaged(&raw mut managed, 4, 1).result()?;
        fails(write(first, managed, 0), CUDA_ERROR_INVALID_VALUE, &["managed memory"]);
        sys::cuMemFree_v2(managed).result()?;
        let flush = sys::cuStreamWaitValue32_v2(first, at, 0, 1 << 30);
        fails(flush.result(), CUDA_ERROR_NOT_SUPPORTED, &["FLUSH"]);
        let unknown = sys::cuStreamWaitValue32_v2(first, at, 0, 4);
        fails(unknown.result(), CUDA_ERROR_INVALID_VALUE, &["0x4 are not the flags"]);
        let count = sys::cuStreamBatchMemOp_v2(first, 256, null_mut(), 0);
        fails(count.result(), CUDA_ERROR_INVALID_VALUE, &["256 operations are more"]);
    }
    Ok(())
}

fn attributes() -> anyhow::Result<()> {
    let start = Start::new()?;
    let [first, second] = start.raw();
    use sys::CUlaunchAttributeID::*;
    // SAFETY: zeros are valid in all fields.
    let mut value: sys::CUlaunchAttributeValue = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the values are readable and writable, and all their bytes are initialized.
    unsafe {
        value.priority = -2;
        sys::cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, &raw const value).result()?;
        value.syncPolicy = sys::CUsynchronizationPolicy::CU_SYNC_POLICY_SPIN;
        let number = CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
        sys::cuStreamSetAttribute(first, number, &raw const value).result()?;
        sys::cuStreamCopyAttributes(second, first).result()?;
        sys::cuStreamGetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &raw mut value).result()?;
        assert_eq!(value.priority, -2);
        sys::cuStreamGetAttribute(second, number, &raw mut value).result()?;
        assert_eq!(value.syncPolicy, sys::CUsynchronizationPolicy::CU_SYNC_POLICY_SPIN);
        let wrong = sys::cuStreamGetAttribute(second, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &raw mut value);
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["2 is not an attribute of a stream"]);
    }
    Ok(())
}
