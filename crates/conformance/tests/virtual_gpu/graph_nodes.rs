//! Graphs whose nodes the program adds itself, and changes of graphs.

mod any_kind;
mod capture;
mod changes;
mod graph;
mod memory;
mod values;

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUgraphNode, CUgraphNodeType, CUresult};
use lab::Check;

use crate::device::untracked;
use crate::raw::address;
use crate::{contains, fails};

use graph::{
    Graph, between, capture, count, dependencies, dependents, kernel, kind, start, to_host, with_parameters,
};

use sys::CUgraphExecUpdateResult_enum as Update;
use sys::CUresult::{CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_INVALID_VALUE};

pub(crate) fn checks() -> Vec<Check> {
    [own_checks(), capture::checks(), changes::checks(), memory::checks(), values::checks()].concat()
}

fn own_checks() -> Vec<Check> {
    vec![
        Check::new("graph_nodes::every_kind_runs_at_each_launch", every_kind),
        Check::new("graph_nodes::nodes_without_an_edge_race", || edge(false)),
        Check::new("graph_nodes::nodes_with_an_edge_don_t", || edge(true)),
        Check::new("graph_nodes::nodes_and_edges_can_be_listed", listed),
        Check::new("graph_nodes::edges_are_added_and_removed", edges),
        Check::new("graph_nodes::a_destroyed_node_takes_its_edges_along", destroyed),
        Check::new("graph_nodes::a_clone_and_a_child_are_copies", copies),
        Check::new("graph_nodes::an_event_node_records_for_other_streams", || events(true)),
        Check::new("graph_nodes::without_an_event_node_other_streams_race", || events(false)),
        Check::new("graph_nodes::a_wait_node_waits_for_another_stream", || waits(true)),
        Check::new("graph_nodes::without_a_wait_node_the_graph_races", || waits(false)),
        Check::new("graph_nodes::a_node_runs_on_the_gpu_of_its_context", two_gpus),
        Check::new("graph_nodes::a_kernel_s_parameters_can_be_read_and_changed", kernel_parameters),
        Check::new("graph_nodes::an_executable_graph_takes_over_parameters", update),
        Check::new("graph_nodes::an_update_that_changes_more_is_refused", refused_updates),
        Check::new("graph_nodes::a_captured_graph_has_nodes", captured),
        Check::new("graph_nodes::a_graph_can_be_drawn", drawn),
        Check::new("graph_nodes::a_launch_fails_after_its_buffer_is_freed", freed),
        Check::new("graph_nodes::a_graph_is_tracked_until_it_is_destroyed", tracked),
        Check::new("graph_nodes::bad_arguments_are_refused", bad_arguments),
        Check::new("graph_nodes::one_function_adds_every_kind", any_kind::every_kind),
        Check::new("graph_nodes::kinds_and_edges_that_are_missing_are_named", any_kind::refused),
    ]
}

fn every_kind() -> anyhow::Result<()> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let (context, stream, buffer) = start()?;
    let other = stream.alloc_zeros::<u32>(4)?;
    stream.synchronize()?;
    let (at, adds) = (address(&buffer), kernel("adds"));
    let mut read = [0_u32; 4];
    let graph = Graph::new();
    let set = graph.set(&[], at, (7, 4, 4), &context)?;
    let first = graph.kernel(&[set], adds, at, 100)?;
    let second = graph.kernel(&[set], adds, at + 4, 200)?;
    let both = graph.empty(&[first, second])?;
    let copied = graph.copy(&[both], &between(at, address(&other), 16), &context)?;
    let child = Graph::new();
    child.kernel(&[], adds, address(&other) + 12, 1)?;
    let child_node = graph.child(&[copied], &child)?;
    drop(child);
    let read_node = graph.copy(&[child_node], &to_host(address(&other), read.as_mut_ptr(), 16), &context)?;
    graph.host(&[read_node], Some(count), (&raw const COUNTER).cast_mut().cast())?;
    let exec = graph.instantiate()?;
    drop(graph);
    assert_eq!((read, COUNTER.load(Ordering::Relaxed)), ([0; 4], 0));
    for launches in 1..=2 {
        read = [0; 4];
        exec.launch(&stream)?;
        stream.synchronize()?;
        assert_eq!((read, COUNTER.load(Ordering::Relaxed)), ([107, 207, 7, 8], launches));
    }
    Ok(())
}

fn edge(is_there: bool) -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let graph = Graph::new();
    let root = graph.empty(&[])?;
    let first = graph.set(&[root], address(&buffer), (1, 1, 16), &context)?;
    let second = graph.set(&[root], address(&buffer), (2, 1, 16), &context)?;
    if is_there {
        graph.connect(first, second)?;
    }
    graph.instantiate()?.launch(&stream)?;
    let done = stream.synchronize();
    if is_there {
        return Ok(done?);
    }
    let words = [
        "data race on GPU 0: nothing makes branch 2 of a graph wait for branch 1 of a graph",
        "written by a memset on branch 1 of a graph",
        "written by a memset on branch 2 of a graph",
        "help: make the node of line ",
        "(cuGraphAddDependencies)",
        "graph_nodes/graph.rs:",
    ];
    fails(done, CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
    Ok(())
}

fn listed() -> anyhow::Result<()> {
    let (context, _stream, buffer) = start()?;
    let graph = Graph::new();
    assert!(graph.nodes().is_empty() && graph.roots().is_empty());
    let set = graph.set(&[], address(&buffer), (1, 2, 8), &context)?;
    let root = graph.empty(&[])?;
    let last = graph.kernel(&[root, set], kernel("adds"), address(&buffer), 1)?;
    assert_eq!(graph.nodes(), [set, root, last]);
    assert_eq!(graph.roots(), [set, root]);
    assert_eq!(dependencies(last), [root, set]);
    assert_eq!(dependents(set), [last]);
    assert!(dependencies(set).is_empty() && dependents(last).is_empty());
    let kinds = [set, root, last].map(kind);
    assert_eq!(
        kinds,
        [
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
        ]
    );
    let (mut from, mut to, mut edges) = ([null_mut(); 3], [null_mut(); 3], 3);
    // SAFETY: the arrays have three elements.
    unsafe {
        sys::cuGraphGetEdges(graph.0, from.as_mut_ptr(), to.as_mut_ptr(), &raw mut edges).result()?;
        assert_eq!((edges, from, to), (2, [root, set, null_mut()], [last, last, null_mut()]));
        sys::cuGraphGetEdges(graph.0, null_mut(), null_mut(), &raw mut edges).result()?;
        assert_eq!(edges, 2);
        let one = sys::cuGraphGetEdges(graph.0, from.as_mut_ptr(), null_mut(), &raw mut edges);
        fails(one.result(), CUDA_ERROR_INVALID_VALUE, &["only one of the arrays"]);
        // Less room than there are nodes.
        let (mut nodes, mut room) = ([null_mut(); 2], 2);
        sys::cuGraphGetNodes(graph.0, nodes.as_mut_ptr(), &raw mut room).result()?;
        assert_eq!((room, nodes), (2, [set, root]));
    }
    Ok(())
}

fn edges() -> anyhow::Result<()> {
    let _context = untracked(0);
    let (graph, other) = (Graph::new(), Graph::new());
    let (a, b, c) = (graph.empty(&[])?, graph.empty(&[])?, graph.empty(&[])?);
    let foreign = other.empty(&[])?;
    graph.connect(a, b)?;
    graph.connect(b, c)?;
    fails(graph.connect(a, b), CUDA_ERROR_INVALID_VALUE, &["already depends on"]);
    fails(graph.connect(foreign, a), CUDA_ERROR_INVALID_VALUE, &["is not in the graph"]);
    fails(graph.disconnect(a, c), CUDA_ERROR_INVALID_VALUE, &["does not depend on"]);
    graph.connect(c, a)?;
    let words = ["a part of a cycle", "graph_nodes/graph.rs:"];
    fails(graph.instantiate().map(drop), CUDA_ERROR_INVALID_VALUE, &words);
    graph.disconnect(a, b)?;
    let exec = graph.instantiate()?;
    assert_eq!(graph.roots(), [b]);
    let stream = untracked(0).new_stream()?;
    exec.launch(&stream)?;
    // SAFETY: nothing is read if there are no edges.
    unsafe { sys::cuGraphAddDependencies(graph.0, std::ptr::null(), std::ptr::null(), 0) }.result()?;
    Ok(())
}

fn destroyed() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let graph = Graph::new();
    let first = graph.set(&[], address(&buffer), (1, 1, 16), &context)?;
    let second = graph.set(&[first], address(&buffer), (2, 1, 16), &context)?;
    let third = graph.empty(&[second])?;
    // SAFETY: the node is alive.
    unsafe { sys::cuGraphDestroyNode(second) }.result()?;
    assert_eq!(graph.nodes(), [first, third]);
    assert!(dependencies(third).is_empty() && dependents(first).is_empty());
    // SAFETY: the driver checks the handle.
    let again = unsafe { sys::cuGraphDestroyNode(second) };
    fails(again.result(), CUDA_ERROR_INVALID_VALUE, &["is not a node of a graph"]);
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0x0101_0101; 4]);
    Ok(())
}

fn copies() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (child, graph) = (Graph::new(), Graph::new());
    child.set(&[], address(&buffer), (1, 1, 16), &context)?;
    let node = graph.child(&[], &child)?;
    child.set(&[], address(&buffer), (9, 1, 16), &context)?;
    assert_eq!(kind(node), CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH);
    let (mut embedded, mut clone) = (null_mut(), null_mut());
    // SAFETY: the results are writable, and the handles are alive.
    unsafe {
        sys::cuGraphChildGraphNodeGetGraph(node, &raw mut embedded).result()?;
        fails(
            sys::cuGraphDestroy(embedded).result(),
            CUDA_ERROR_INVALID_VALUE,
            &["belongs to a node: destroy the node"],
        );
        sys::cuGraphClone(&raw mut clone, graph.0).result()?;
    }
    let (embedded, clone) = (std::mem::ManuallyDrop::new(Graph(embedded)), Graph(clone));
    let inner = embedded.nodes();
    assert_eq!(inner.len(), 1);
    // A change of the embedded graph changes the node, but not the clone.
    embedded.set(&inner, address(&buffer), (5, 1, 4), &context)?;
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0x0505_0505, 0x0101_0101, 0x0101_0101, 0x0101_0101]);
    drop((child, graph));
    clone.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0x0101_0101; 4]);
    // SAFETY: the driver checks the handle.
    let gone = unsafe { sys::cuGraphDestroyNode(inner[0]) };
    fails(gone.result(), CUDA_ERROR_INVALID_VALUE, &["is not a node of a graph"]);
    Ok(())
}

fn events(is_recorded: bool) -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let other = context.new_stream()?;
    let event = context.new_event(None)?;
    let graph = Graph::new();
    let set = graph.set(&[], address(&buffer), (1, 1, 16), &context)?;
    if is_recorded {
        let record = graph.record(&[set], event.cu_event())?;
        assert_eq!(kind(record), CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    }
    graph.instantiate()?.launch(&stream)?;
    other.wait(&event)?;
    let read = other.clone_dtoh(&buffer).and_then(|read| other.synchronize().map(|()| read));
    if is_recorded {
        assert_eq!(read?, [0x0101_0101; 4]);
        return Ok(event.synchronize()?);
    }
    fails(read, CUresult::CUDA_ERROR_LAUNCH_FAILED, &["data race on GPU 0", "branch 1 of a graph"]);
    Ok(())
}

fn waits(is_there: bool) -> anyhow::Result<()> {
    let (context, stream, mut buffer) = start()?;
    let other = context.new_stream()?;
    let event = context.new_event(None)?;
    let graph = Graph::new();
    let wait = if is_there { graph.wait(&[], event.cu_event())? } else { graph.empty(&[])? };
    graph.set(&[wait], address(&buffer), (1, 1, 16), &context)?;
    let exec = graph.instantiate()?;
    other.memset_zeros(&mut buffer)?;
    event.record(&other)?;
    exec.launch(&stream)?;
    let done = stream.synchronize();
    if is_there {
        assert_eq!(kind(wait), CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT);
        done?;
        drop(event);
        fails(exec.launch(&stream), CUresult::CUDA_ERROR_INVALID_HANDLE, &["is not an event"]);
        return Ok(());
    }
    fails(done, CUresult::CUDA_ERROR_LAUNCH_FAILED, &["data race on GPU 0", "branch 1 of a graph"]);
    Ok(())
}

fn two_gpus() -> anyhow::Result<()> {
    let second = untracked(1);
    let there = second.new_stream()?;
    let y = there.alloc_zeros::<u32>(4)?;
    there.synchronize()?;
    let (first, stream, x) = start()?;
    let graph = Graph::new();
    let set = graph.set(&[], address(&x), (3, 4, 4), &first)?;
    let copied = graph.copy(&[set], &between(address(&x), address(&y), 16), &first)?;
    second.bind_to_thread()?;
    graph.kernel(&[copied], kernel("adds"), address(&y), 4)?;
    first.bind_to_thread()?;
    graph.instantiate()?.launch(&stream)?;
    stream.synchronize()?;
    assert_eq!(there.clone_dtoh(&y)?, [7, 3, 3, 3]);
    Ok(())
}

fn kernel_parameters() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (at, adds, multiplies) = (address(&buffer), kernel("adds"), kernel("multiplies"));
    let graph = Graph::new();
    let node = graph.kernel(&[], adds, at, 3)?;
    let exec = graph.instantiate()?;
    // SAFETY: zero is valid for each field.
    let mut read: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: the result is writable, and the node has two parameters.
    unsafe {
        sys::cuGraphKernelNodeGetParams_v2(node, &raw mut read).result()?;
        assert_eq!((read.func, read.gridDimX, read.blockDimZ, read.sharedMemBytes), (adds, 1, 1, 0));
        assert!(read.extra.is_null() && read.kern.is_null());
        let (to, value) =
            (*read.kernelParams.cast::<*const u64>(), *read.kernelParams.add(1).cast::<*const u32>());
        assert_eq!((*to, *value), (at, 3));
        let again = read.kernelParams;
        sys::cuGraphKernelNodeGetParams_v2(node, &raw mut read).result()?;
        assert_eq!(read.kernelParams, again);
        // What was read can be set again, with one change.
        read.gridDimX = 2;
        sys::cuGraphKernelNodeSetParams_v2(node, &raw const read).result()?;
        sys::cuGraphKernelNodeGetParams_v2(node, &raw mut read).result()?;
        assert_eq!(read.gridDimX, 2);
    }
    with_parameters(multiplies, at, 5, |parameters| {
        // SAFETY: the handles are alive.
        unsafe { sys::cuGraphKernelNodeSetParams_v2(node, parameters) }.result()
    })?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?[0], 3);
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?[0], 15);
    // Only later launches of the executable graph change.
    exec.launch(&stream)?;
    with_parameters(adds, at, 100, |parameters| {
        // SAFETY: the handles are alive.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec.0, node, parameters) }.result()
    })?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?[0], 118);

    let set = graph.set(&[], at, (1, 1, 1), &context)?;
    let invalid = CUDA_ERROR_INVALID_VALUE;
    // SAFETY: the driver checks the handles.
    unsafe {
        let none = sys::cuGraphKernelNodeGetParams_v2(set, &raw mut read);
        fails(none.result(), invalid, &["is not a kernel node, but a memset"]);
    }
    with_parameters(adds, at, 1, |parameters| {
        // SAFETY: the driver checks the handles.
        let not_in = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec.0, set, parameters) };
        fails(not_in.result(), invalid, &["was not made from node"]);
        // SAFETY: the driver checks the handles.
        let other = unsafe { sys::cuGraphKernelNodeSetParams_v2(set, parameters) };
        fails(other.result(), invalid, &["is not a kernel node"]);
    });
    let there = untracked(1);
    there.bind_to_thread()?;
    with_parameters(kernel("adds"), at, 1, |parameters| {
        // SAFETY: the driver checks the handles.
        let moved = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec.0, node, parameters) };
        fails(moved.result(), invalid, &["runs on GPU 0, not on GPU 1"]);
    });
    Ok(())
}

fn update() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (at, adds) = (address(&buffer), kernel("adds"));
    let build = |value: u32, added: u32| -> anyhow::Result<Graph> {
        let graph = Graph::new();
        let set = graph.set(&[], at, (value, 4, 4), &context)?;
        graph.kernel(&[set], adds, at, added)?;
        Ok(graph)
    };
    let graph = build(1, 2)?;
    let exec = graph.instantiate()?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [3, 1, 1, 1]);
    let (code, info) = exec.update(&build(10, 20)?);
    code?;
    assert_eq!(info.result, Update::CU_GRAPH_EXEC_UPDATE_SUCCESS);
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [30, 10, 10, 10]);
    // The nodes are still those of the first graph.
    with_parameters(adds, at, 5, |parameters| {
        // SAFETY: the handles are alive.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec.0, graph.nodes()[1], parameters) }.result()
    })?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [15, 10, 10, 10]);
    Ok(())
}

fn refused_updates() -> anyhow::Result<()> {
    let second = untracked(1);
    let elsewhere = second.new_stream()?.alloc_zeros::<u32>(4)?;
    let other_adds = kernel("adds");
    let (context, stream, buffer) = start()?;
    let (at, adds) = (address(&buffer), kernel("adds"));
    let graph = Graph::new();
    let a = graph.set(&[], at, (1, 4, 4), &context)?;
    let b = graph.kernel(&[a], adds, at, 1)?;
    graph.empty(&[b])?;
    let exec = graph.instantiate()?;
    let refused = |graph: &Graph, result: Update, node: CUgraphNode, words: &str| {
        let (code, info) = exec.update(graph);
        fails(code, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, &[words]);
        assert_eq!((info.result, info.errorNode), (result, node), "{words}");
        info.errorFromNode
    };
    let other = Graph::new();
    let a = other.set(&[], at, (1, 4, 4), &context)?;
    let topology = Update::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    refused(&other, topology, null_mut(), "the graph has 1 nodes instead of 3");
    let b = other.kernel(&[], adds, at, 1)?;
    let c = other.empty(&[b])?;
    refused(&other, topology, b, "it has 0 dependencies instead of 1");
    other.connect(a, b)?;
    other.disconnect(b, c)?;
    other.connect(a, c)?;
    assert_eq!(refused(&other, topology, c, "it depends on another node"), a);
    let build = |at: u64, of: &CudaContext, function, is_empty: bool| -> anyhow::Result<Graph> {
        let graph = Graph::new();
        let a = graph.set(&[], at, (1, 4, 4), of)?;
        let b = if is_empty { graph.empty(&[a])? } else { graph.kernel(&[a], function, at, 1)? };
        graph.empty(&[b])?;
        Ok(graph)
    };
    let other = build(at, &context, adds, true)?;
    let kind = Update::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    refused(&other, kind, other.nodes()[1], "the node was kernel `adds`");
    let other = build(address(&elsewhere), &second, adds, false)?;
    let parameters = Update::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    refused(&other, parameters, other.nodes()[0], "its memory is on another device");
    let other = build(at, &context, other_adds, false)?;
    let function = Update::CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    refused(&other, function, other.nodes()[1], "the kernel is from another context");
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [2, 1, 1, 1]);
    Ok(())
}

fn captured() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (at, adds) = (address(&buffer), kernel("adds"));
    let graph = capture(&stream, at, 1, adds)?;
    let nodes = graph.nodes();
    assert_eq!(nodes.len(), 2);
    assert_eq!(kind(nodes[0]), CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET);
    assert_eq!(kind(nodes[1]), CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    assert_eq!(dependencies(nodes[1]), [nodes[0]]);
    let exec = graph.instantiate()?;
    // The usual way to change parameters: capture again, and update.
    exec.update(&capture(&stream, at, 40, adds)?).0?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [41, 40, 40, 40]);
    // Nodes can be added to a captured graph.
    graph.set(&nodes[1..], at + 8, (0, 4, 2), &context)?;
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [2, 1, 0, 0]);
    Ok(())
}

fn drawn() -> anyhow::Result<()> {
    let (context, _stream, buffer) = start()?;
    let graph = Graph::new();
    let set = graph.set(&[], address(&buffer), (1, 4, 4), &context)?;
    graph.kernel(&[set], kernel("adds"), address(&buffer), 1)?;
    let path = std::env::temp_dir().join(format!("graph_nodes_{}.dot", std::process::id()));
    let c_path = CString::new(path.to_str().unwrap())?;
    let draw = |path: &CString, flags| {
        // SAFETY: the path is a C string.
        unsafe { sys::cuGraphDebugDotPrint(graph.0, path.as_ptr(), flags) }.result()
    };
    draw(&c_path, 0)?;
    let plain = std::fs::read_to_string(&path)?;
    contains(&plain, &["digraph", "MEMSET", "adds", "\"graph_1_node_0\" -> \"graph_1_node_1\""]);
    draw(&c_path, 1)?;
    contains(&std::fs::read_to_string(&path)?, &["grid [1, 1, 1]", "16 bytes at", "handle 0x"]);
    std::fs::remove_file(&path)?;
    let nowhere = CString::new("/nowhere/graph.dot")?;
    fails(draw(&nowhere, 0), CUresult::CUDA_ERROR_OPERATING_SYSTEM, &["/nowhere/graph.dot"]);
    Ok(())
}

fn freed() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let graph = Graph::new();
    graph.set(&[], address(&buffer), (1, 1, 16), &context)?;
    let exec = graph.instantiate()?;
    drop(buffer);
    stream.synchronize()?;
    exec.launch(&stream)?;
    let words = ["freed before", "graph_nodes/graph.rs:"];
    fails(stream.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

/// Returns the functions that made the live objects which this file's lines have created.
fn live_objects(library: *mut c_void) -> Vec<String> {
    unsafe extern "C" fn add(object: *const c_void, to: *mut c_void) {
        // SAFETY: an object starts with the name of a function, and `to` is the list below.
        unsafe {
            let name = std::ffi::CStr::from_ptr(*object.cast::<*const std::ffi::c_char>());
            (*to.cast::<Vec<String>>()).push(name.to_string_lossy().into_owned());
        }
    }
    type Visit = unsafe extern "C" fn(*const c_void, *mut c_void);
    let mut names: Vec<String> = Vec::new();
    // SAFETY: this is the function's type.
    unsafe {
        let visit: unsafe extern "C" fn(Visit, *mut c_void) =
            std::mem::transmute(libc::dlsym(library, c"virtualGpuLiveObjects".as_ptr()));
        visit(add, (&raw mut names).cast());
    }
    names
}

fn tracked() -> anyhow::Result<()> {
    let _context = untracked(0);
    let own = CString::new(format!("{}/tests/virtual_gpu", env!("CARGO_MANIFEST_DIR")))?;
    // SAFETY: the library is loaded, and these are the functions' types.
    let library = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let show: extern "C" fn(*const std::ffi::c_char) =
            std::mem::transmute(libc::dlsym(library, c"virtualGpuShowSourcesFirst".as_ptr()));
        show(own.as_ptr());
        let track: extern "C" fn() =
            std::mem::transmute(libc::dlsym(library, c"virtualGpuTrackObjects".as_ptr()));
        track();
        library
    };
    let graph = Graph::new();
    let mut clone = null_mut();
    // SAFETY: the result is writable.
    unsafe { sys::cuGraphClone(&raw mut clone, graph.0) }.result()?;
    let (clone, exec) = (Graph(clone), graph.instantiate()?);
    let made = live_objects(library);
    assert_eq!(made, ["cuGraphCreate", "cuGraphClone", "cuGraphInstantiateWithFlags"]);
    drop((graph, exec));
    assert_eq!(live_objects(library), ["cuGraphClone"]);
    drop(clone);
    assert!(live_objects(library).is_empty());
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    let (context, _stream, buffer) = start()?;
    let (at, adds) = (address(&buffer), kernel("adds"));
    let invalid = CUDA_ERROR_INVALID_VALUE;
    let (graph, other) = (Graph::new(), Graph::new());
    let (node, foreign) = (graph.empty(&[])?, other.empty(&[])?);
    fails(graph.empty(&[node, node]), invalid, &["is listed twice among the dependencies"]);
    fails(graph.empty(&[foreign]), invalid, &["is not in the graph"]);
    fails(graph.set(&[], at, (1, 3, 4), &context), invalid, &["must be 1, 2, or 4, not 3"]);
    fails(graph.set(&[], at, (1, 4, 5), &context), invalid, &["not all in one buffer"]);
    fails(graph.host(&[], None, null_mut()), invalid, &["cuGraphAddHostNode: the function is null"]);
    // As a driver of version 580 does; the documentation lists only the code for an invalid value.
    fails(graph.kernel(&[], null_mut(), at, 1), CUresult::CUDA_ERROR_INVALID_HANDLE, &["is not a function"]);
    fails(graph.record(&[], null_mut()), invalid, &["is not an event"]);
    fails(graph.wait(&[], null_mut()), invalid, &["is not an event"]);
    fails(graph.kernel(&[foreign], adds, at, 1), invalid, &["is not in the graph"]);
    let mut host = [0; 4];
    let mut copy = to_host(at, host.as_mut_ptr(), 16);
    (copy.srcMemoryType, copy.srcHost) = (copy.dstMemoryType, host.as_ptr().cast());
    let words = ["a copy between two host addresses in a graph is not supported"];
    fails(graph.copy(&[], &copy, &context), CUresult::CUDA_ERROR_NOT_SUPPORTED, &words);
    let (mut made, mut added) = (null_mut(), null_mut());
    let copy = between(at, at + 8, 4);
    // SAFETY: the driver checks the arguments.
    unsafe {
        let flags = sys::cuGraphCreate(&raw mut made, 1);
        fails(flags.result(), invalid, &["the flags must be 0, not 0x1"]);
        let nowhere = sys::cuGraphAddEmptyNode(&raw mut added, null_mut(), std::ptr::null(), 0);
        fails(nowhere.result(), invalid, &["is not a graph"]);
        let no_result = sys::cuGraphAddEmptyNode(null_mut(), graph.0, std::ptr::null(), 0);
        fails(no_result.result(), invalid, &["the pointer to the new node is null"]);
        let no_list = sys::cuGraphAddEmptyNode(&raw mut added, graph.0, std::ptr::null(), 1);
        fails(no_list.result(), invalid, &["is null"]);
        let (mut node, none) = (null_mut(), std::ptr::null());
        let no_context =
            sys::cuGraphAddMemcpyNode(&raw mut node, graph.0, none, 0, &raw const copy, null_mut());
        fails(no_context.result(), invalid, &["is not a context"]);
        let set =
            sys::CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 0, value: 0, elementSize: 1, width: 1, height: 1 };
        let no_context =
            sys::cuGraphAddMemsetNode(&raw mut node, graph.0, none, 0, &raw const set, null_mut());
        fails(no_context.result(), CUresult::CUDA_ERROR_INVALID_CONTEXT, &["is not a context"]);
    }
    assert_eq!(graph.nodes(), [node]);
    Ok(())
}
