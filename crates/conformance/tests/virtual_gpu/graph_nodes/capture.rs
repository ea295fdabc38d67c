//! Captures that a program looks into and changes, and user objects.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::DriverError;
use cudarc::driver::result::stream::{self, StreamKind};
use cudarc::driver::sys::{
    self, CUgraphNode, CUgraphNodeType as Kind, CUresult, CUstream, CUstreamCaptureMode_enum as Mode,
    CUstreamCaptureStatus_enum as Status,
};
use lab::Check;

use super::graph::{Graph, count, dependencies, kind, start};
use crate::fails;
use crate::raw::address;

use sys::CUresult::{
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("captures::a_capture_can_be_looked_into", look),
        Check::new("captures::nodes_are_added_by_hand", by_hand),
        Check::new("captures::dependencies_can_be_replaced", replaced),
        Check::new("captures::a_graph_gets_a_capture", to_graph),
        Check::new("captures::a_thread_chooses_what_it_can_break", thread_mode),
        Check::new("captures::external_events_become_nodes", external),
        Check::new("captures::contexts_record_and_wait", contexts),
        Check::new("captures::a_context_s_record_orders_nothing_else", only_recorded),
        Check::new("captures::a_context_s_wait_orders_nothing_else", only_waited),
        Check::new("user_objects::live_as_long_as_their_graphs", user_objects),
        Check::new("user_objects::an_update_replaces_them", updated_objects),
        Check::new("user_objects::bad_counts_are_refused", bad_counts),
    ]
}

/// What the driver says about a stream's capture.
struct Info {
    status: Status,
    id: u64,
    graph: sys::CUgraph,
    after: Vec<CUgraphNode>,
}

fn info(stream: CUstream) -> Info {
    let mut info =
        Info { status: Status::CU_STREAM_CAPTURE_STATUS_NONE, id: 0, graph: null_mut(), after: vec![] };
    let (mut nodes, mut edges, mut count) = (null(), null(), 0);
    // SAFETY: the results are writable, and the nodes are readable until the next call.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream,
            &raw mut info.status,
            &raw mut info.id,
            &raw mut info.graph,
            &raw mut nodes,
            &raw mut edges,
            &raw mut count,
        )
        .result()
        .unwrap();
        if count > 0 {
            info.after = std::slice::from_raw_parts(nodes, count).to_vec();
        }
    }
    info
}

fn begin(stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(stream, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) }.result()
}

fn end(stream: CUstream) -> Result<Graph, DriverError> {
    let mut graph = null_mut();
    // SAFETY: the result is writable.
    unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) }.result().map(|()| Graph(graph))
}

fn set(stream: CUstream, at: u64, value: u32) -> Result<(), DriverError> {
    // SAFETY: the driver checks the address.
    unsafe { sys::cuMemsetD32Async(at, value, 4, stream) }.result()
}

fn update(stream: CUstream, nodes: &mut [CUgraphNode], flags: u32) -> Result<(), DriverError> {
    // SAFETY: the nodes are readable.
    unsafe { sys::cuStreamUpdateCaptureDependencies(stream, nodes.as_mut_ptr(), nodes.len(), flags) }.result()
}

fn look() -> anyhow::Result<()> {
    let (_context, stream, buffer) = start()?;
    let raw = stream.cu_stream();
    assert_eq!(info(raw).status, Status::CU_STREAM_CAPTURE_STATUS_NONE);
    begin(raw)?;
    let first = info(raw);
    assert_eq!(first.status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert!(first.after.is_empty() && !first.graph.is_null());
    set(raw, address(&buffer), 1)?;
    let second = info(raw);
    assert_eq!((second.id, second.graph, second.after.len()), (first.id, first.graph, 1));
    assert_eq!(kind(second.after[0]), Kind::CU_GRAPH_NODE_TYPE_MEMSET);
    // SAFETY: the driver checks the handles.
    unsafe {
        let refused = sys::cuGraphDestroy(first.graph).result();
        fails(refused, CUDA_ERROR_INVALID_VALUE, &["is getting the nodes of a capture"]);
        let refused = sys::cuGraphDestroyNode(second.after[0]).result();
        fails(refused, CUDA_ERROR_INVALID_VALUE, &["is getting the nodes of a capture"]);
    }
    let graph = end(raw)?;
    assert_eq!(graph.0, first.graph);
    assert_eq!(graph.nodes(), second.after);
    begin(raw)?;
    assert_ne!(info(raw).id, first.id);
    end(raw)?;
    Ok(())
}

fn by_hand() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (raw, at) = (stream.cu_stream(), address(&buffer));
    begin(raw)?;
    set(raw, at, 1)?;
    let known = info(raw);
    let graph = std::mem::ManuallyDrop::new(Graph(known.graph));
    let added = graph.set(&known.after, at, (2, 4, 2), &context)?;
    update(raw, &mut [added], 1)?;
    assert_eq!(info(raw).after, [added]);
    set(raw, at + 8, 3).unwrap_err();
    // SAFETY: the buffer has this many bytes.
    unsafe { sys::cuMemsetD32Async(at + 12, 3, 1, raw) }.result()?;
    let graph = end(raw)?;
    assert_eq!(dependencies(graph.nodes()[2]), [added]);
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [2, 2, 1, 3]);
    Ok(())
}

fn replaced() -> anyhow::Result<()> {
    let (_context, stream, buffer) = start()?;
    let (raw, at) = (stream.cu_stream(), address(&buffer));
    fails(update(raw, &mut [], 0), CUDA_ERROR_ILLEGAL_STATE, &["is not being captured"]);
    begin(raw)?;
    set(raw, at, 1)?;
    let first = info(raw).after;
    update(raw, &mut [], 1)?;
    assert!(info(raw).after.is_empty());
    update(raw, &mut first.clone(), 0)?;
    assert_eq!(info(raw).after, first);
    // Nodes that the program removes don't have to be joined.
    update(raw, &mut [], 1)?;
    let mut foreign = Graph::new().empty(&[])?;
    fails(
        update(raw, std::slice::from_mut(&mut foreign), 0),
        CUDA_ERROR_INVALID_VALUE,
        &["is not in the graph"],
    );
    fails(update(raw, &mut [], 2), CUDA_ERROR_INVALID_VALUE, &["unknown flags"]);
    assert_eq!(end(raw)?.nodes(), first);
    Ok(())
}

fn to_graph() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (raw, at) = (stream.cu_stream(), address(&buffer));
    let graph = Graph::new();
    let first = graph.set(&[], at, (1, 4, 4), &context)?;
    let mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the node is readable.
    let begin_to = || unsafe {
        sys::cuStreamBeginCaptureToGraph(raw, graph.0, &raw const first, null(), 1, mode).result()
    };
    begin_to()?;
    assert_eq!((info(raw).graph, info(raw).after), (graph.0, vec![first]));
    set(raw, at, 2)?;
    let same = end(raw)?;
    assert_eq!(same.0, graph.0);
    std::mem::forget(same);
    assert_eq!(dependencies(graph.nodes()[1]), [first]);
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [2; 4]);
    // A capture that fails leaves the graph.
    begin_to()?;
    let other = context.new_stream()?;
    other.wait(&stream.record_event(None)?)?;
    set(other.cu_stream(), at, 3)?;
    fails(end(raw).map(drop), CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &["does not wait for a memset"]);
    assert!(graph.nodes().len() >= 2);
    Ok(())
}

fn thread_mode() -> anyhow::Result<()> {
    let (_context, stream, _buffer) = start()?;
    let raw = stream.cu_stream();
    let exchange = |mut mode: Mode| {
        // SAFETY: the mode is readable and writable.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result().map(|()| mode)
    };
    let allocate = || {
        let mut at = 0;
        // SAFETY: the result is writable.
        unsafe { sys::cuMemAlloc_v2(&raw mut at, 16).result()? };
        // SAFETY: nothing uses the memory.
        unsafe { sys::cuMemFree_v2(at).result() }
    };
    begin(raw)?;
    assert_eq!(exchange(Mode::CU_STREAM_CAPTURE_MODE_RELAXED)?, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    allocate()?;
    assert_eq!(exchange(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    fails(allocate(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, &["cuMemAlloc can't be captured"]);
    assert!(end(raw).is_err());
    Ok(())
}

fn external() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (raw, event) = (stream.cu_stream(), context.new_event(None)?);
    // SAFETY: both handles are alive.
    let record = || unsafe { sys::cuEventRecordWithFlags(event.cu_event(), raw, 1) }.result();
    // SAFETY: as above.
    let wait = || unsafe { sys::cuStreamWaitEvent(raw, event.cu_event(), 1) }.result();
    fails(record(), CUDA_ERROR_ILLEGAL_STATE, &["EXTERNAL is only for captures"]);
    fails(wait(), CUDA_ERROR_ILLEGAL_STATE, &["EXTERNAL is only for captures"]);
    // SAFETY: as above.
    unsafe { sys::cuEventRecordWithFlags(event.cu_event(), raw, 0) }.result()?;
    begin(raw)?;
    wait()?;
    set(raw, address(&buffer), 1)?;
    record()?;
    let graph = end(raw)?;
    let kinds: Vec<_> = graph.nodes().into_iter().map(kind).collect();
    let expected = [
        Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Kind::CU_GRAPH_NODE_TYPE_MEMSET,
        Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    ];
    assert_eq!(kinds, expected);
    graph.instantiate()?.launch(&stream)?;
    let other = context.new_stream()?;
    other.wait(&event)?;
    assert_eq!(other.clone_dtoh(&buffer)?, [1; 4]);
    Ok(())
}

fn contexts() -> anyhow::Result<()> {
    let (context, stream, mut buffer) = start()?;
    let (other, event) = (context.new_stream()?, context.new_event(None)?);
    stream.memset_zeros(&mut buffer)?;
    // SAFETY: all handles are alive.
    unsafe {
        sys::cuCtxRecordEvent(context.cu_ctx(), event.cu_event()).result()?;
        sys::cuCtxWaitEvent(context.cu_ctx(), event.cu_event()).result()?;
        let (mut of, mut green) = (null_mut(), 1 as sys::CUgreenCtx);
        sys::cuStreamGetCtx_v2(other.cu_stream(), &raw mut of, &raw mut green).result()?;
        assert_eq!((of, green), (context.cu_ctx(), null_mut()));
    }
    // Nothing else orders the two streams.
    assert_eq!(other.clone_dtoh(&buffer)?, [0; 4]);
    Ok(())
}

/// Writes a buffer on two streams, and calls `between` in between, which must not order them. Both streams and the default
/// stream wait for each other.
fn race_beside(between: impl Fn(sys::CUcontext, sys::CUevent) -> CUresult) -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let event = context.new_event(None)?;
    // SAFETY: the context, the event, and the buffer are alive.
    unsafe { sys::cuCtxRecordEvent(context.cu_ctx(), event.cu_event()) }.result()?;
    let [first, second] = [stream::create(StreamKind::Default)?, stream::create(StreamKind::Default)?];
    stream.synchronize()?;
    set(first, address(&buffer), 1)?;
    between(context.cu_ctx(), event.cu_event()).result()?;
    set(second, address(&buffer), 2)?;
    // SAFETY: the stream is alive.
    let end = unsafe { sys::cuStreamSynchronize(second) };
    fails(end.result(), CUDA_ERROR_LAUNCH_FAILED, &["data race"]);
    Ok(())
}

fn only_recorded() -> anyhow::Result<()> {
    // SAFETY: the handles are alive.
    race_beside(|context, event| unsafe { sys::cuCtxRecordEvent(context, event) })
}

fn only_waited() -> anyhow::Result<()> {
    // SAFETY: the handles are alive.
    race_beside(|context, event| unsafe { sys::cuCtxWaitEvent(context, event) })
}

fn new_object(counter: &AtomicUsize, references: u32) -> Result<sys::CUuserObject, DriverError> {
    let (mut object, data) = (null_mut(), (counter as *const AtomicUsize).cast_mut().cast::<c_void>());
    // SAFETY: the counter outlives the object.
    unsafe { sys::cuUserObjectCreate(&raw mut object, data, Some(count), references, 1) }.result()?;
    Ok(object)
}

fn user_objects() -> anyhow::Result<()> {
    static COUNTERS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let destroyed = || COUNTERS.each_ref().map(|it| it.load(Ordering::Relaxed));
    let (_context, stream, _buffer) = start()?;
    let (moved, shared) = (new_object(&COUNTERS[0], 1)?, new_object(&COUNTERS[1], 1)?);
    let graph = Graph::new();
    graph.empty(&[])?;
    let mut clone = null_mut();
    // SAFETY: all handles are alive.
    unsafe {
        sys::cuGraphRetainUserObject(graph.0, moved, 1, 1).result()?;
        sys::cuGraphRetainUserObject(graph.0, shared, 2, 0).result()?;
        sys::cuGraphReleaseUserObject(graph.0, shared, 1).result()?;
        sys::cuGraphClone(&raw mut clone, graph.0).result()?;
    }
    let (clone, exec) = (Graph(clone), graph.instantiate()?);
    drop(graph);
    // SAFETY: the object is alive.
    unsafe { sys::cuUserObjectRelease(shared, 1) }.result()?;
    drop(clone);
    assert_eq!(destroyed(), [0, 0]);
    exec.launch(&stream)?;
    drop(exec);
    stream.synchronize()?;
    assert_eq!(destroyed(), [1, 1]);
    Ok(())
}

/// "The references in the new source graph are cloned and replace the references in the target graph" (CUDA
/// Programming Guide, "CUDA User Objects").
fn updated_objects() -> anyhow::Result<()> {
    static COUNTERS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let destroyed = || COUNTERS.each_ref().map(|it| it.load(Ordering::Relaxed));
    let (_context, stream, _buffer) = start()?;
    let graphs = [Graph::new(), Graph::new()];
    for (graph, counter) in graphs.iter().zip(&COUNTERS) {
        graph.empty(&[])?;
        let object = new_object(counter, 1)?;
        // SAFETY: both handles are alive.
        unsafe { sys::cuGraphRetainUserObject(graph.0, object, 1, 1) }.result()?;
    }
    let exec = graphs[0].instantiate()?;
    exec.launch(&stream)?;
    exec.update(&graphs[1]).0?;
    drop(graphs);
    stream.synchronize()?;
    assert_eq!(destroyed(), [1, 0]);
    drop(exec);
    assert_eq!(destroyed(), [1, 1]);
    Ok(())
}

fn bad_counts() -> anyhow::Result<()> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let _started = start()?;
    let object = new_object(&COUNTER, 2)?;
    let graph = Graph::new();
    let invalid = |result: Result<(), DriverError>, words: &str| {
        fails(result, CUDA_ERROR_INVALID_VALUE, &[words]);
    };
    invalid(new_object(&COUNTER, 0).map(drop), "0 is not a number of references");
    // SAFETY: the driver checks the handles and counts.
    unsafe {
        invalid(sys::cuUserObjectRelease(object, 3).result(), "has 2 references, not 3");
        invalid(sys::cuUserObjectRetain(object, u32::MAX).result(), "is not a number of references");
        invalid(sys::cuGraphReleaseUserObject(graph.0, object, 1).result(), "has 0 references");
        invalid(sys::cuGraphRetainUserObject(graph.0, object, 3, 1).result(), "fewer than 3 references");
        sys::cuUserObjectRetain(object, 1).result()?;
        sys::cuUserObjectRelease(object, 3).result()?;
        assert_eq!(COUNTER.load(Ordering::Relaxed), 1);
        invalid(sys::cuUserObjectRelease(object, 1).result(), "is not a user object");
    }
    Ok(())
}
