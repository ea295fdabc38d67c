//! Memory that graphs own.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    self, CUgraphMem_attribute_enum as Figure, CUgraphNode, CUgraphNodeType as Kind, CUresult,
};
use lab::Check;

use super::graph::{Exec, Graph, between, kernel, kind, start, to_host};
use crate::fails;
use crate::raw::address;

use sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("graph_memory::a_graph_allocates_at_each_launch", at_each_launch),
        Check::new("graph_memory::memory_that_the_graph_keeps_is_freed_by_others", kept),
        Check::new("graph_memory::another_graph_can_free_the_memory", by_another_graph),
        Check::new("graph_memory::a_launch_can_free_first", auto_free),
        Check::new("graph_memory::a_captured_allocation_belongs_to_the_graph", captured),
        Check::new("graph_memory::a_use_before_the_allocation_is_reported", before),
        Check::new("graph_memory::a_use_after_the_free_is_reported", after),
        Check::new("graph_memory::a_use_without_order_races", unordered),
        Check::new("graph_memory::a_use_after_the_launch_needs_order", unordered_after_launch),
        Check::new("graph_memory::bytes_are_unwritten_after_each_allocation", unwritten),
        Check::new("graph_memory::figures_follow_the_launches", figures),
        Check::new("graph_memory::broken_rules_are_refused", refused),
        Check::new("graph_memory::an_update_takes_over_other_addresses", updated),
    ]
}

/// Returns the parameters of an allocation of `bytes` on GPU 0.
pub(super) fn parameters(bytes: usize) -> sys::CUDA_MEM_ALLOC_NODE_PARAMS {
    // SAFETY: zeros are valid in all fields except for the enumerations that are set below.
    unsafe {
        let mut it = MaybeUninit::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
        (*it.as_mut_ptr()).poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        (*it.as_mut_ptr()).poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        (*it.as_mut_ptr()).bytesize = bytes;
        it.assume_init()
    }
}

impl Graph {
    fn allocate(&self, after: &[CUgraphNode], bytes: usize) -> Result<(CUgraphNode, u64), DriverError> {
        let mut given = parameters(bytes);
        // SAFETY: the parameters are readable and writable.
        let node = self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddMemAllocNode(to, graph, from, n, &raw mut given)
        })?;
        Ok((node, given.dptr))
    }

    fn free(&self, after: &[CUgraphNode], at: u64) -> Result<CUgraphNode, DriverError> {
        // SAFETY: the driver checks the address.
        self.add(after, |to, graph, from, n| unsafe { sys::cuGraphAddMemFreeNode(to, graph, from, n, at) })
    }

    fn instantiate_with(&self, flags: u64) -> Result<Exec, DriverError> {
        let mut exec = null_mut();
        // SAFETY: the result is writable.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, self.0, flags) }.result()?;
        Ok(Exec(exec))
    }
}

fn figure(which: Figure) -> u64 {
    let mut value = 0_u64;
    // SAFETY: the result has 8 bytes.
    unsafe { sys::cuDeviceGetGraphMemAttribute(0, which, (&raw mut value).cast()) }.result().unwrap();
    value
}

fn free_in(at: u64, stream: sys::CUstream) -> Result<(), DriverError> {
    // SAFETY: the driver checks the address.
    unsafe { sys::cuMemFreeAsync(at, stream) }.result()
}

fn at_each_launch() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let graph = Graph::new();
    let (node, at) = graph.allocate(&[], 16)?;
    assert_eq!(kind(node), Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    let set = graph.set(&[node], at, (7, 4, 4), &context)?;
    let add = graph.kernel(&[set], kernel("adds"), at, 1)?;
    let copy = graph.copy(&[add], &between(at, address(&buffer), 16), &context)?;
    let free = graph.free(&[copy], at)?;
    assert_eq!(kind(free), Kind::CU_GRAPH_NODE_TYPE_MEM_FREE);
    let (mut read, mut freed) = (parameters(0), 0);
    // SAFETY: the results are writable.
    unsafe {
        sys::cuGraphMemAllocNodeGetParams(node, &raw mut read).result()?;
        sys::cuGraphMemFreeNodeGetParams(free, &raw mut freed).result()?;
        fails(
            sys::cuGraphMemFreeNodeGetParams(node, &raw mut freed).result(),
            CUDA_ERROR_INVALID_VALUE,
            &["frees no memory"],
        );
    }
    assert_eq!((read.dptr, read.bytesize, read.poolProps.location.id, freed), (at, 16, 0, at));
    let exec = graph.instantiate()?;
    for _ in 0..3 {
        stream.memset_zeros(&mut stream.clone_dtod(&buffer)?)?;
        exec.launch(&stream)?;
        assert_eq!(stream.clone_dtoh(&buffer)?, [8, 7, 7, 7]);
    }
    drop((exec, graph));
    stream.synchronize()?;
    Ok(())
}

fn kept() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let graph = Graph::new();
    let (node, at) = graph.allocate(&[], 16)?;
    graph.set(&[node], at, (7, 4, 4), &context)?;
    let exec = graph.instantiate()?;
    fails(free_in(at, stream.cu_stream()), CUDA_ERROR_INVALID_VALUE, &["is not allocated"]);
    for freed_async in [true, false] {
        exec.launch(&stream)?;
        let words = ["16 bytes that the graph allocates", "memory.rs:", "AUTO_FREE_ON_LAUNCH"];
        fails(exec.launch(&stream), CUDA_ERROR_INVALID_VALUE, &words);
        let mut read = [0_u32; 4];
        // SAFETY: the array has 16 bytes.
        unsafe {
            sys::cuMemcpyDtoHAsync_v2(read.as_mut_ptr().cast(), at, 16, stream.cu_stream()).result()?;
        }
        assert_eq!(read, [7; 4]);
        match freed_async {
            true => free_in(at, stream.cu_stream())?,
            // SAFETY: nothing uses the memory anymore.
            false => unsafe { sys::cuMemFree_v2(at) }.result()?,
        }
        fails(free_in(at, stream.cu_stream()), CUDA_ERROR_INVALID_VALUE, &["is not allocated"]);
    }
    exec.launch(&stream)?;
    drop((exec, graph));
    // The memory outlives its graph.
    free_in(at, stream.cu_stream())?;
    fails(free_in(at, stream.cu_stream()), CUDA_ERROR_INVALID_VALUE, &["freed again"]);
    stream.synchronize()?;
    Ok(())
}

fn by_another_graph() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (first, second) = (Graph::new(), Graph::new());
    let (node, at) = first.allocate(&[], 16)?;
    first.set(&[node], at, (3, 4, 4), &context)?;
    let copy = second.copy(&[], &between(at, address(&buffer), 16), &context)?;
    second.free(&[copy], at)?;
    fails(first.free(&[node], at), CUDA_ERROR_INVALID_VALUE, &["another graph already frees"]);
    let (first, second) = (first.instantiate()?, second.instantiate()?);
    let words = ["the 16 bytes that a graph allocates"];
    fails(second.launch(&stream), CUDA_ERROR_INVALID_VALUE, &words);
    for _ in 0..2 {
        first.launch(&stream)?;
        second.launch(&stream)?;
        assert_eq!(stream.clone_dtoh(&buffer)?, [3; 4]);
    }
    Ok(())
}

fn auto_free() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let graph = Graph::new();
    let (node, at) = graph.allocate(&[], 16)?;
    graph.set(&[node], at, (7, 4, 4), &context)?;
    let exec = graph.instantiate_with(1)?;
    for _ in 0..3 {
        exec.launch(&stream)?;
    }
    stream.synchronize()?;
    assert_eq!(figure(Figure::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 16);
    free_in(at, stream.cu_stream())?;
    assert_eq!(figure(Figure::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    Ok(())
}

fn captured() -> anyhow::Result<()> {
    let (_context, stream, buffer) = start()?;
    let (raw, mut at, mut graph) = (stream.cu_stream(), 0, null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the results are writable, and the buffer outlives the launches.
    unsafe {
        sys::cuStreamBeginCapture_v2(raw, mode).result()?;
        sys::cuMemAllocAsync(&raw mut at, 16, raw).result()?;
        sys::cuMemsetD32Async(at, 5, 4, raw).result()?;
        sys::cuMemcpyDtoDAsync_v2(address(&buffer), at, 16, raw).result()?;
        fails(free_in(address(&buffer), raw), CUDA_ERROR_INVALID_VALUE, &["a graph can't free other memory"]);
        free_in(at, raw)?;
        fails(free_in(at, raw), CUDA_ERROR_INVALID_VALUE, &["already frees"]);
        sys::cuStreamEndCapture(raw, &raw mut graph).result()?;
    }
    let graph = Graph(graph);
    let kinds: Vec<_> = graph.nodes().into_iter().map(kind).collect();
    let expected = [
        Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        Kind::CU_GRAPH_NODE_TYPE_MEMSET,
        Kind::CU_GRAPH_NODE_TYPE_MEMCPY,
        Kind::CU_GRAPH_NODE_TYPE_MEM_FREE,
    ];
    assert_eq!(kinds, expected);
    let exec = graph.instantiate()?;
    exec.launch(&stream)?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [5; 4]);
    Ok(())
}

fn before() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let graph = Graph::new();
    let root = graph.empty(&[])?;
    let (node, at) = graph.allocate(&[root], 16)?;
    let early = graph.kernel(&[], kernel("adds"), at, 1)?;
    graph.connect(early, root)?;
    let set = graph.set(&[node], at, (0, 4, 4), &context)?;
    graph.free(&[set], at)?;
    graph.instantiate()?.launch(&stream)?;
    let words = ["uses memory that its graph has not allocated yet", "depend on the allocation node"];
    fails(stream.synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

fn after() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let graph = Graph::new();
    let (node, at) = graph.allocate(&[], 16)?;
    let set = graph.set(&[node], at, (0, 4, 4), &context)?;
    let free = graph.free(&[set], at)?;
    graph.kernel(&[free], kernel("adds"), at, 1)?;
    graph.instantiate()?.launch(&stream)?;
    fails(stream.synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS, &["uses freed memory", "freed"]);
    Ok(())
}

fn unordered() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let graph = Graph::new();
    let (node, at) = graph.allocate(&[], 16)?;
    let set = graph.set(&[], at, (0, 4, 4), &context)?;
    graph.free(&[node, set], at)?;
    graph.instantiate()?.launch(&stream)?;
    let words = ["data race", "written by an allocation on branch 1", "written by a memset on branch 2"];
    fails(stream.synchronize(), CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn unordered_after_launch() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let other = context.new_stream()?;
    let graph = Graph::new();
    let (node, at) = graph.allocate(&[], 16)?;
    graph.set(&[node], at, (0, 4, 4), &context)?;
    graph.instantiate()?.launch(&stream)?;
    free_in(at, other.cu_stream())?;
    fails(other.synchronize(), CUDA_ERROR_LAUNCH_FAILED, &["data race", "freed on stream"]);
    Ok(())
}

fn unwritten() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (graph, mut read) = (Graph::new(), [0_u32; 4]);
    let (node, at) = graph.allocate(&[], 16)?;
    let into = graph.copy(&[node], &to_host(at, read.as_mut_ptr(), 16), &context)?;
    let copy = graph.copy(&[into], &between(address(&buffer), at, 16), &context)?;
    graph.free(&[copy], at)?;
    graph.instantiate()?.launch(&stream)?;
    fails(stream.synchronize(), CUDA_ERROR_LAUNCH_FAILED, &["reads bytes that nothing wrote"]);
    Ok(())
}

fn figures() -> anyhow::Result<()> {
    const GRANULE: u64 = 2 << 20;
    let (context, stream, _buffer) = start()?;
    let all = || {
        use Figure::*;
        [
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
        ]
        .map(figure)
    };
    let graph = Graph::new();
    // The second allocation can reuse the bytes of the first one.
    let (first, at) = graph.allocate(&[], 3 << 20)?;
    let freed = graph.free(&[first], at)?;
    let (_, at) = graph.allocate(&[freed], 3 << 20)?;
    let exec = graph.instantiate()?;
    assert_eq!(all(), [0; 4]);
    let free = context.mem_get_info()?.0;
    exec.launch(&stream)?;
    assert_eq!(all(), [3 << 20, 3 << 20, 2 * GRANULE, 2 * GRANULE]);
    assert_eq!(context.mem_get_info()?.0, free - 2 * GRANULE as usize);
    free_in(at, stream.cu_stream())?;
    stream.synchronize()?;
    assert_eq!(all(), [0, 3 << 20, 2 * GRANULE, 2 * GRANULE]);
    let mut zero = 0_u64;
    // SAFETY: the value has 8 bytes.
    unsafe {
        let high = Figure::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
        sys::cuDeviceSetGraphMemAttribute(0, high, (&raw mut zero).cast()).result()?;
        let current = Figure::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
        let refused = sys::cuDeviceSetGraphMemAttribute(0, current, (&raw mut zero).cast());
        fails(refused.result(), CUDA_ERROR_INVALID_VALUE, &["can only be read"]);
        sys::cuDeviceGraphMemTrim(0).result()?;
    }
    assert_eq!(all(), [0, 0, 0, 2 * GRANULE]);
    assert_eq!(context.mem_get_info()?.0, free);
    Ok(())
}

fn refused() -> anyhow::Result<()> {
    let (_context, stream, buffer) = start()?;
    let (graph, other) = (Graph::new(), Graph::new());
    let invalid = |result, words: &str| fails(result, CUDA_ERROR_INVALID_VALUE, &[words]);
    let (node, at) = graph.allocate(&[], 16)?;
    invalid(graph.free(&[node], at + 4).map(drop), "not the address of memory that a graph allocates");
    invalid(graph.free(&[node], address(&buffer)).map(drop), "a graph can't free other memory");
    invalid(graph.allocate(&[], 0).map(drop), "0 bytes");
    let too_large = graph.allocate(&[], 1 << 45);
    fails(too_large, CUresult::CUDA_ERROR_OUT_OF_MEMORY, &["GPU 0"]);
    let free = graph.free(&[node], at)?;
    invalid(graph.free(&[node], at).map(drop), "already frees");
    invalid(other.free(&[], at).map(drop), "already frees it");
    invalid(graph.disconnect(node, free), "nothing can be removed");
    let mut clone = null_mut();
    // SAFETY: the result is writable.
    unsafe {
        invalid(sys::cuGraphDestroyNode(free).result(), "nothing can be removed");
        invalid(sys::cuGraphClone(&raw mut clone, graph.0).result(), "can't be copied");
    }
    invalid(other.child(&[], &graph).map(drop), "can't be copied");
    let exec = graph.instantiate()?;
    invalid(graph.instantiate().map(drop), "only once at a time");
    exec.launch(&stream)?;
    invalid(free_in(at, stream.cu_stream()), "only the graph can free it");
    drop(exec);
    graph.instantiate()?.launch(&stream)?;
    stream.synchronize()?;
    let mut given = parameters(16);
    given.poolProps.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: the parameters are readable and writable.
    let shared = graph.add(&[], |to, graph, from, n| unsafe {
        sys::cuGraphAddMemAllocNode(to, graph, from, n, &raw mut given)
    });
    invalid(shared.map(drop), "can't be shared through handles");
    Ok(())
}

fn updated() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let make = |value| -> anyhow::Result<Graph> {
        let graph = Graph::new();
        let (node, at) = graph.allocate(&[], 16)?;
        let set = graph.set(&[node], at, (value, 4, 4), &context)?;
        let copy = graph.copy(&[set], &between(at, address(&buffer), 16), &context)?;
        graph.free(&[copy], at)?;
        Ok(graph)
    };
    let (first, second) = (make(1)?, make(2)?);
    let exec = first.instantiate()?;
    let in_use = second.instantiate()?;
    assert!(exec.update(&second).0.is_err());
    drop(in_use);
    exec.update(&second).0?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [2; 4]);
    Ok(())
}
