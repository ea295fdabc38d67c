//! Reading and changing the parameters of nodes, in graphs and in executable graphs.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    self, CUgraphExecUpdateResult_enum as Update, CUgraphNode, CUgraphNodeType as Kind, CUresult,
};
use lab::Check;

use super::any_kind::{add, parameters};
use super::graph::{Exec, Graph, between, count, kernel, start, to_host, with_parameters};
use crate::device::untracked;
use crate::fails;
use crate::raw::address;

use sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("graph_changes::parameters_are_what_was_set", read),
        Check::new("graph_changes::a_copy_of_an_array_is_read", of_array),
        Check::new("graph_changes::captured_parameters_can_be_read", captured),
        Check::new("graph_changes::a_graph_s_nodes_change", graph_nodes),
        Check::new("graph_changes::an_executable_graph_s_nodes_change", executable_nodes),
        Check::new("graph_changes::a_child_graph_changes", child),
        Check::new("graph_changes::one_function_changes_every_kind", any_kind),
        Check::new("graph_changes::a_node_is_switched_off_and_on", enabled),
        Check::new("graph_changes::a_node_is_found_in_a_clone", clone),
        Check::new("graph_changes::a_child_can_be_moved", moved),
        Check::new("graph_changes::kernels_have_attributes", attributes),
        Check::new("graph_changes::instantiation_returns_why_it_failed", instantiation),
    ]
}

fn set_of(at: u64, value: u32, element: u32, width: usize) -> sys::CUDA_MEMSET_NODE_PARAMS {
    sys::CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 0, value, elementSize: element, width, height: 1 }
}

fn zeroed<T>() -> T {
    // SAFETY: zeros are valid in all fields of the driver's structures that are used here.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn copy_of(node: CUgraphNode) -> Result<sys::CUDA_MEMCPY3D, DriverError> {
    // Zero is no value of a memory type, so start with a whole copy.
    let mut copy = to_host(0, null_mut(), 0);
    // SAFETY: the result is writable.
    unsafe { sys::cuGraphMemcpyNodeGetParams(node, &raw mut copy) }.result().map(|()| copy)
}

fn read() -> anyhow::Result<()> {
    let (context, _stream, buffer) = start()?;
    let (at, mut host, graph) = (address(&buffer), [0_u32; 4], Graph::new());
    let (event, other) = (context.new_event(None)?, context.new_event(None)?);
    let counter = AtomicUsize::new(0);
    let set = graph.set(&[], at, (0x1_2345, 2, 3), &context)?;
    let copy = graph.copy(&[set], &to_host(at, host.as_mut_ptr(), 12), &context)?;
    let call = graph.host(&[copy], Some(count), (&raw const counter).cast_mut().cast())?;
    let record = graph.record(&[call], event.cu_event())?;
    let wait = graph.wait(&[record], other.cu_event())?;
    // SAFETY: the results are writable.
    unsafe {
        let mut known = set_of(0, 0, 0, 0);
        sys::cuGraphMemsetNodeGetParams(set, &raw mut known).result()?;
        assert_eq!((known.dst, known.value, known.elementSize), (at, 0x2345, 2));
        assert_eq!((known.width, known.height), (3, 1));
        let known = copy_of(copy)?;
        assert_eq!(known.srcMemoryType, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        assert_eq!(known.dstMemoryType, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
        assert_eq!((known.srcDevice, known.dstHost), (at, host.as_mut_ptr().cast()));
        assert_eq!((known.WidthInBytes, known.Height, known.Depth), (12, 1, 1));
        let mut known: sys::CUDA_HOST_NODE_PARAMS = zeroed();
        sys::cuGraphHostNodeGetParams(call, &raw mut known).result()?;
        assert_eq!(known.fn_.map(|it| it as usize), Some(count as *const () as usize));
        assert_eq!(known.userData.cast_const(), (&raw const counter).cast());
        let mut known = null_mut();
        sys::cuGraphEventRecordNodeGetEvent(record, &raw mut known).result()?;
        assert_eq!(known, event.cu_event());
        sys::cuGraphEventWaitNodeGetEvent(wait, &raw mut known).result()?;
        assert_eq!(known, other.cu_event());
        let wrong = sys::cuGraphEventWaitNodeGetEvent(record, &raw mut known);
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["is not an event wait"]);
    }
    fails(copy_of(set).map(drop), CUDA_ERROR_INVALID_VALUE, &["is not a copy, but a memset"]);
    Ok(())
}

/// The copy's array, and where in the array it begins.
fn of_array() -> anyhow::Result<()> {
    let (context, stream, _buffer) = start()?;
    let (mut array, mut host, graph) = (null_mut(), [1.0_f32, 2.0, 0.0, 0.0], Graph::new());
    let description = sys::CUDA_ARRAY_DESCRIPTOR {
        Width: 4,
        Height: 3,
        Format: sys::CUarray_format::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
    };
    // SAFETY: the result is writable.
    unsafe { sys::cuArrayCreate_v2(&raw mut array, &raw const description) }.result()?;
    let mut there = to_host(0, null_mut(), 8);
    (there.srcMemoryType, there.srcHost) = (sys::CUmemorytype::CU_MEMORYTYPE_HOST, host.as_ptr().cast());
    (there.dstMemoryType, there.dstArray) = (sys::CUmemorytype::CU_MEMORYTYPE_ARRAY, array);
    (there.dstXInBytes, there.dstY) = (4, 2);
    let mut back = to_host(0, host[2..].as_mut_ptr().cast(), 8);
    (back.srcMemoryType, back.srcArray) = (sys::CUmemorytype::CU_MEMORYTYPE_ARRAY, array);
    (back.srcXInBytes, back.srcY) = (4, 2);
    let first = graph.copy(&[], &there, &context)?;
    let second = graph.copy(&[first], &back, &context)?;
    let (there, back) = (copy_of(first)?, copy_of(second)?);
    assert_eq!((there.dstMemoryType, there.dstArray), (sys::CUmemorytype::CU_MEMORYTYPE_ARRAY, array));
    assert_eq!((there.dstXInBytes, there.dstY, there.dstZ), (4, 2, 0));
    assert_eq!((back.srcMemoryType, back.srcArray), (sys::CUmemorytype::CU_MEMORYTYPE_ARRAY, array));
    assert_eq!((back.srcXInBytes, back.srcY, back.WidthInBytes), (4, 2, 8));
    // What was read describes the same copy.
    // SAFETY: the parameters are readable.
    unsafe { sys::cuGraphMemcpyNodeSetParams(first, &raw const there) }.result()?;
    graph.instantiate()?.launch(&stream)?;
    stream.synchronize()?;
    assert_eq!(host, [1.0, 2.0, 1.0, 2.0]);
    // SAFETY: nothing uses the array anymore.
    Ok(unsafe { sys::cuArrayDestroy(array) }.result()?)
}

fn captured() -> anyhow::Result<()> {
    let (_context, stream, buffer) = start()?;
    let (raw, at, host, mut graph) = (stream.cu_stream(), address(&buffer), [1_u32; 4], null_mut());
    // SAFETY: the memory outlives the graph.
    unsafe {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        sys::cuStreamBeginCapture_v2(raw, mode).result()?;
        sys::cuMemcpyHtoDAsync_v2(at, host.as_ptr().cast(), 16, raw).result()?;
        sys::cuStreamEndCapture(raw, &raw mut graph).result()?;
    }
    let graph = Graph(graph);
    let copy = copy_of(graph.nodes()[0])?;
    assert_eq!((copy.srcHost, copy.dstDevice, copy.WidthInBytes), (host.as_ptr().cast(), at, 16));
    Ok(())
}

fn graph_nodes() -> anyhow::Result<()> {
    static COUNTERS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let counter = |at: usize| (&raw const COUNTERS[at]).cast_mut().cast();
    let (context, stream, buffer) = start()?;
    let (at, mut host, mut other) = (address(&buffer), [0_u32; 4], [0_u32; 4]);
    let graph = Graph::new();
    let set = graph.set(&[], at, (1, 4, 4), &context)?;
    let add = graph.kernel(&[set], kernel("adds"), at, 1)?;
    let copy = graph.copy(&[add], &to_host(at, host.as_mut_ptr(), 16), &context)?;
    let call = graph.host(&[copy], Some(count), counter(0))?;
    let changed = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(count), userData: counter(1) };
    // SAFETY: the parameters are readable, and the memory outlives the launch.
    unsafe {
        sys::cuGraphMemsetNodeSetParams(set, &set_of(at, 2, 4, 4)).result()?;
        sys::cuGraphMemcpyNodeSetParams(copy, &to_host(at, other.as_mut_ptr(), 16)).result()?;
        sys::cuGraphHostNodeSetParams(call, &changed).result()?;
        let wrong = sys::cuGraphMemsetNodeSetParams(copy, &set_of(at, 2, 4, 4));
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["the parameters are of another type"]);
        let wrong = sys::cuGraphMemsetNodeSetParams(set, &set_of(at, 2, 3, 4));
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["must be 1, 2, or 4, not 3"]);
    }
    graph.instantiate()?.launch(&stream)?;
    stream.synchronize()?;
    assert_eq!((host, other), ([0; 4], [3, 2, 2, 2]));
    assert_eq!(COUNTERS.each_ref().map(|it| it.load(Ordering::Relaxed)), [0, 1]);
    Ok(())
}

fn executable_nodes() -> anyhow::Result<()> {
    static COUNTERS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let counter = |at: usize| (&raw const COUNTERS[at]).cast_mut().cast();
    let (context, stream, buffer) = start()?;
    let (at, mut host, mut other) = (address(&buffer), [0_u32; 4], [0_u32; 4]);
    let (first, second) = (context.new_event(None)?, context.new_event(None)?);
    let graph = Graph::new();
    let set = graph.set(&[], at, (1, 4, 4), &context)?;
    let add = graph.kernel(&[set], kernel("adds"), at, 1)?;
    let copy = graph.copy(&[add], &to_host(at, host.as_mut_ptr(), 16), &context)?;
    let call = graph.host(&[copy], Some(count), counter(0))?;
    let record = graph.record(&[call], first.cu_event())?;
    let exec = graph.instantiate()?;
    let changed = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(count), userData: counter(1) };
    let ctx = context.cu_ctx();
    // SAFETY: as above.
    unsafe {
        sys::cuGraphExecMemsetNodeSetParams(exec.0, set, &set_of(at, 2, 4, 4), ctx).result()?;
        sys::cuGraphExecMemcpyNodeSetParams(exec.0, copy, &to_host(at, other.as_mut_ptr(), 16), ctx)
            .result()?;
        sys::cuGraphExecHostNodeSetParams(exec.0, call, &changed).result()?;
        sys::cuGraphExecEventRecordNodeSetEvent(exec.0, record, second.cu_event()).result()?;
        let wrong = sys::cuGraphExecMemcpyNodeSetParams(exec.0, copy, &between(at, at + 8, 8), ctx);
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["must keep its direction"]);
        let (context_1, elsewhere) = (untracked(1), Graph::new());
        context_1.bind_to_thread()?;
        let memory = context_1.default_stream().alloc_zeros::<u32>(4)?;
        context_1.synchronize()?;
        let moved = set_of(address(&memory), 2, 4, 4);
        let wrong = sys::cuGraphExecMemsetNodeSetParams(exec.0, set, &moved, context.cu_ctx());
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["its memory is on another device"]);
        let wrong =
            sys::cuGraphExecMemsetNodeSetParams(exec.0, set, &set_of(at, 2, 4, 4), context_1.cu_ctx());
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["a memset runs on"]);
        let foreign = elsewhere.set(&[], address(&memory), (1, 1, 1), &context_1)?;
        let wrong = sys::cuGraphExecMemsetNodeSetParams(exec.0, foreign, &moved, context_1.cu_ctx());
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["was not made from node"]);
        context.bind_to_thread()?;
    }
    exec.launch(&stream)?;
    stream.synchronize()?;
    assert_eq!((host, other), ([0; 4], [3, 2, 2, 2]));
    assert_eq!(COUNTERS.each_ref().map(|it| it.load(Ordering::Relaxed)), [0, 1]);
    // The graph itself has not changed.
    graph.instantiate()?.launch(&stream)?;
    stream.synchronize()?;
    assert_eq!(host, [2, 1, 1, 1]);
    Ok(())
}

fn child() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let at = address(&buffer);
    let make = |value, node_count| -> anyhow::Result<Graph> {
        let graph = Graph::new();
        let set = graph.set(&[], at, (value, 4, 4), &context)?;
        for _ in 1..node_count {
            graph.kernel(&[set], kernel("adds"), at, value)?;
        }
        Ok(graph)
    };
    let graph = Graph::new();
    let before = graph.set(&[], at, (9, 4, 4), &context)?;
    let node = graph.child(&[before], &make(1, 2)?)?;
    graph.kernel(&[node], kernel("adds"), at, 100)?;
    let exec = graph.instantiate()?;
    let (new, other) = (make(2, 2)?, make(2, 1)?);
    // SAFETY: all handles are alive.
    unsafe {
        sys::cuGraphExecChildGraphNodeSetParams(exec.0, node, new.0).result()?;
        let wrong = sys::cuGraphExecChildGraphNodeSetParams(exec.0, node, other.0);
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["has 1 nodes instead of 2"]);
        let wrong = sys::cuGraphExecChildGraphNodeSetParams(exec.0, before, other.0);
        fails(wrong.result(), CUDA_ERROR_INVALID_VALUE, &["has no graph"]);
    }
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [104, 2, 2, 2]);
    Ok(())
}

fn any_kind() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let at = address(&buffer);
    let graph = Graph::new();
    let set = graph.set(&[], at, (1, 4, 4), &context)?;
    let empty = graph.empty(&[set])?;
    let set_to = |value| {
        parameters(Kind::CU_GRAPH_NODE_TYPE_MEMSET, |it| {
            it.__bindgen_anon_1.memset = sys::CUDA_MEMSET_NODE_PARAMS_v2 {
                dst: at,
                pitch: 0,
                value,
                elementSize: 4,
                width: 4,
                height: 1,
                ctx: context.cu_ctx(),
            };
        })
    };
    let exec = graph.instantiate()?;
    // SAFETY: the parameters are readable.
    unsafe {
        sys::cuGraphNodeSetParams(set, &mut set_to(2)).result()?;
        sys::cuGraphExecNodeSetParams(exec.0, set, &mut set_to(3)).result()?;
        let mut nothing = parameters(Kind::CU_GRAPH_NODE_TYPE_EMPTY, |_| {});
        let refused = sys::cuGraphNodeSetParams(empty, &mut nothing);
        fails(refused.result(), CUDA_ERROR_NOT_SUPPORTED, &["a node of this type"]);
    }
    for (exec, value) in [(graph.instantiate()?, 2), (exec, 3)] {
        exec.launch(&stream)?;
        assert_eq!(stream.clone_dtoh(&buffer)?, [value; 4]);
    }
    Ok(())
}

fn enabled() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let at = address(&buffer);
    let graph = Graph::new();
    let set = graph.set(&[], at, (1, 4, 4), &context)?;
    let add = graph.kernel(&[set], kernel("adds"), at, 1)?;
    let empty = graph.empty(&[add])?;
    let exec = graph.instantiate()?;
    for is_on in [0, 1] {
        // SAFETY: the handles are alive.
        unsafe { sys::cuGraphNodeSetEnabled(exec.0, add, is_on) }.result()?;
        let mut known = 9;
        // SAFETY: the result is writable.
        unsafe { sys::cuGraphNodeGetEnabled(exec.0, add, &raw mut known) }.result()?;
        assert_eq!(known, is_on);
        exec.launch(&stream)?;
        assert_eq!(stream.clone_dtoh(&buffer)?[0], 1 + is_on);
    }
    // SAFETY: the driver checks the node.
    let refused = unsafe { sys::cuGraphNodeSetEnabled(exec.0, empty, 0) };
    fails(refused.result(), CUDA_ERROR_INVALID_VALUE, &["only kernels, copies, and memsets"]);
    Ok(())
}

fn clone() -> anyhow::Result<()> {
    let _context = untracked(0);
    let graph = Graph::new();
    let (first, second) = (graph.empty(&[])?, graph.empty(&[])?);
    let (mut clone, mut found) = (null_mut(), null_mut());
    // SAFETY: the results are writable.
    unsafe { sys::cuGraphClone(&raw mut clone, graph.0) }.result()?;
    let clone = Graph(clone);
    let late = graph.empty(&[])?;
    let mut find = |node| {
        // SAFETY: as above.
        unsafe { sys::cuGraphNodeFindInClone(&raw mut found, node, clone.0) }.result().map(|()| found)
    };
    assert_eq!([find(first)?, find(second)?], clone.nodes()[..]);
    fails(find(late).map(drop), CUDA_ERROR_INVALID_VALUE, &["has no copy of node"]);
    Ok(())
}

fn moved() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (inner, outer) = (Graph::new(), Graph::new());
    let mut scratch = super::memory::parameters(16);
    // SAFETY: the parameters are readable and writable.
    let node = inner.add(&[], |to, graph, from, n| unsafe {
        sys::cuGraphAddMemAllocNode(to, graph, from, n, &raw mut scratch)
    })?;
    let set = inner.set(&[node], scratch.dptr, (6, 4, 4), &context)?;
    let copy = inner.copy(&[set], &between(scratch.dptr, address(&buffer), 16), &context)?;
    // SAFETY: as above.
    inner.add(&[copy], |to, graph, from, n| unsafe {
        sys::cuGraphAddMemFreeNode(to, graph, from, n, scratch.dptr)
    })?;
    let child = |ownership| {
        parameters(Kind::CU_GRAPH_NODE_TYPE_GRAPH, |it| {
            it.__bindgen_anon_1.graph.graph = inner.0;
            it.__bindgen_anon_1.graph.ownership = ownership;
        })
    };
    use sys::CUgraphChildGraphNodeOwnership::{
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE as COPIES, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE as MOVES,
    };
    fails(add(outer.0, None, child(COPIES)), CUDA_ERROR_INVALID_VALUE, &["can't be copied"]);
    fails(add(inner.0, None, child(MOVES)), CUDA_ERROR_INVALID_VALUE, &["can't contain itself"]);
    add(outer.0, None, child(MOVES))?;
    fails(add(outer.0, None, child(MOVES)), CUDA_ERROR_INVALID_VALUE, &["already belongs to a node"]);
    std::mem::forget(inner);
    let exec = outer.instantiate()?;
    exec.launch(&stream)?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [6; 4]);
    Ok(())
}

fn attributes() -> anyhow::Result<()> {
    let (_context, _stream, buffer) = start()?;
    let (at, adds, graph) = (address(&buffer), kernel("adds"), Graph::new());
    let (first, second) = (graph.kernel(&[], adds, at, 1)?, graph.kernel(&[], adds, at, 1)?);
    use sys::CUlaunchAttributeID::*;
    let get = |node, number| -> Result<[u8; 64], DriverError> {
        let mut value: sys::CUlaunchAttributeValue = zeroed();
        // SAFETY: the result is writable, and all its bytes are initialized.
        unsafe {
            sys::cuGraphKernelNodeGetAttribute(node, number, &raw mut value).result()?;
            Ok(std::mem::transmute::<sys::CUlaunchAttributeValue, [u8; 64]>(value))
        }
    };
    let set = |node, number, first: i32| {
        let mut value: sys::CUlaunchAttributeValue = zeroed();
        value.priority = first;
        // SAFETY: the value is readable.
        unsafe { sys::cuGraphKernelNodeSetAttribute(node, number, &raw const value) }.result()
    };
    set(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, 3)?;
    set(first, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1)?;
    // SAFETY: both nodes are alive.
    unsafe { sys::cuGraphKernelNodeCopyAttributes(second, first) }.result()?;
    for node in [first, second] {
        assert_eq!(get(node, CU_LAUNCH_ATTRIBUTE_PRIORITY)?[0], 3);
        assert_eq!(get(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?[0], 1);
    }
    let refused = set(first, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, 1);
    fails(refused, CUDA_ERROR_NOT_SUPPORTED, &["attribute 1 of a kernel node"]);
    fails(set(first, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, 1), CUDA_ERROR_INVALID_VALUE, &["7 is not"]);
    Ok(())
}

fn instantiation() -> anyhow::Result<()> {
    let (_context, stream, _buffer) = start()?;
    let graph = Graph::new();
    let (first, second) = (graph.empty(&[])?, graph.empty(&[])?);
    graph.connect(first, second)?;
    let instantiate = |flags| {
        let mut given: sys::CUDA_GRAPH_INSTANTIATE_PARAMS = zeroed();
        (given.flags, given.hUploadStream) = (flags, stream.cu_stream());
        let mut exec = null_mut();
        // SAFETY: the parameters are readable and writable.
        let code = unsafe { sys::cuGraphInstantiateWithParams(&raw mut exec, graph.0, &raw mut given) };
        (code.result(), exec, given)
    };
    let (code, exec, given) = instantiate(2 | 1);
    code?;
    let exec = Exec(exec);
    let mut flags = 0;
    // SAFETY: the result is writable.
    unsafe { sys::cuGraphExecGetFlags(exec.0, &raw mut flags) }.result()?;
    assert_eq!((given.result_out as u32, flags), (0, 1));
    graph.connect(second, first)?;
    let (code, _, given) = instantiate(0);
    fails(code, CUDA_ERROR_INVALID_VALUE, &["a part of a cycle"]);
    assert_eq!((given.result_out as u32, given.hErrNode_out), (2, first));
    let info = exec.update(&graph).1;
    assert_eq!(info.result, Update::CU_GRAPH_EXEC_UPDATE_ERROR);
    with_parameters(null_mut(), 0, 0, |given| {
        let mut node = null_mut();
        // SAFETY: the driver checks the function.
        let code = unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, graph.0, null_mut(), 0, given) };
        assert_ne!(code, CUresult::CUDA_SUCCESS);
    });
    Ok(())
}
