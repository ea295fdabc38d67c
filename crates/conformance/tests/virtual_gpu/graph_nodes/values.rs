//! Nodes that write numbers in memory, and wait for them.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    self, CUcontext, CUgraphNode, CUgraphNodeType, CUstreamBatchMemOpParams as Operation,
    CUstreamBatchMemOpType as Kind,
};
use lab::Check;

use super::any_kind;
use super::graph::{Exec, Graph, start};
use crate::fails;
use crate::raw::address;

use sys::CUresult::CUDA_ERROR_INVALID_VALUE;

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("memory_operation_nodes::run_one_after_the_other", run),
        Check::new("memory_operation_nodes::wait_for_another_stream", wait),
        Check::new("memory_operation_nodes::are_read_and_changed", changed),
        Check::new("memory_operation_nodes::keep_their_operations_in_an_executable_graph", fixed),
        Check::new("memory_operation_nodes::a_captured_batch_is_one_node", captured),
        Check::new("memory_operation_nodes::are_added_and_changed_as_any_node", as_any_node),
        Check::new("memory_operation_nodes::bad_arguments_are_refused", refused),
    ]
}

/// Returns an operation on a number of 4 bytes.
fn on(kind: Kind, at: u64, value: u32) -> Operation {
    // SAFETY: zeros are valid in all fields except for the operation, which is set.
    unsafe {
        let mut it = MaybeUninit::<Operation>::zeroed();
        let fields = &raw mut (*it.as_mut_ptr()).writeValue;
        (*fields).operation = kind;
        (*fields).address = at;
        (*fields).__bindgen_anon_1.value = value;
        it.assume_init()
    }
}

fn write(at: u64, value: u32) -> Operation {
    on(Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32, at, value)
}

fn wait_for(at: u64, value: u32) -> Operation {
    on(Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32, at, value)
}

fn barrier() -> Operation {
    on(Kind::CU_STREAM_MEM_OP_BARRIER, 0, 0)
}

fn parameters(ctx: CUcontext, operations: &mut [Operation]) -> sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
    let (count, array) = (operations.len() as u32, operations.as_mut_ptr());
    sys::CUDA_BATCH_MEM_OP_NODE_PARAMS { ctx, count, paramArray: array, flags: 0 }
}

fn add(graph: &Graph, context: CUcontext, operations: &mut [Operation]) -> Result<CUgraphNode, DriverError> {
    let given = parameters(context, operations);
    // SAFETY: the parameters are readable.
    graph.add(&[], |to, graph, from, count| unsafe {
        sys::cuGraphAddBatchMemOpNode(to, graph, from, count, &given)
    })
}

/// What the driver says about a node.
#[derive(Debug, PartialEq)]
struct Found {
    context: CUcontext,
    /// The address and the number of each operation other than a barrier.
    numbers: Vec<(u64, u32)>,
    /// The number of operations.
    count: usize,
}

fn read(node: CUgraphNode) -> anyhow::Result<Found> {
    let mut found = parameters(null_mut(), &mut []);
    // SAFETY: the result is writable, and its array has `count` operations.
    unsafe {
        sys::cuGraphBatchMemOpNodeGetParams(node, &raw mut found).result()?;
        let operations = std::slice::from_raw_parts(found.paramArray, found.count as usize);
        let with_address = operations.iter().filter(|it| it.operation != Kind::CU_STREAM_MEM_OP_BARRIER);
        let values = with_address.map(|it| (it.writeValue.address, it.writeValue.__bindgen_anon_1.value));
        Ok(Found { context: found.ctx, numbers: values.collect(), count: operations.len() })
    }
}

fn run() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (graph, at) = (Graph::new(), address(&buffer));
    let mut all = [write(at, 3), barrier(), wait_for(at, 3), write(at + 4, 5)];
    let node = add(&graph, context.cu_ctx(), &mut all)?;
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [3, 5, 0, 0]);
    let numbers = vec![(at, 3), (at, 3), (at + 4, 5)];
    assert_eq!(read(node)?, Found { context: context.cu_ctx(), numbers, count: 4 });
    Ok(())
}

fn wait() -> anyhow::Result<()> {
    let (context, stream, mut buffer) = start()?;
    let (other, graph, at) = (context.new_stream()?, Graph::new(), address(&buffer));
    add(&graph, context.cu_ctx(), &mut [wait_for(at, 1)])?;
    graph.instantiate()?.launch(&stream)?;
    other.memcpy_htod(&[6, 7], &mut buffer.slice_mut(2..))?;
    // SAFETY: the driver checks the address.
    unsafe { sys::cuStreamWriteValue32_v2(other.cu_stream(), at, 1, 0) }.result()?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [1, 0, 6, 7]);
    Ok(())
}

fn changed() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (graph, at) = (Graph::new(), address(&buffer));
    let node = add(&graph, context.cu_ctx(), &mut [write(at, 1)])?;
    let old = graph.instantiate()?;
    let mut two = [write(at + 4, 2), write(at + 8, 3)];
    let given = parameters(context.cu_ctx(), &mut two);
    // SAFETY: the parameters are readable.
    unsafe { sys::cuGraphBatchMemOpNodeSetParams(node, &given) }.result()?;
    assert_eq!(read(node)?.numbers, [(at + 4, 2), (at + 8, 3)]);
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0, 2, 3, 0]);
    old.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [1, 2, 3, 0]);
    Ok(())
}

/// "Other fields, such as the context, count or type of operations, and other types of operations such as membars, may
/// not be modified" (`cuGraphExecBatchMemOpNodeSetParams`).
fn fixed() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (graph, at) = (Graph::new(), address(&buffer));
    let node = add(&graph, context.cu_ctx(), &mut [write(at, 1), wait_for(at, 1)])?;
    let exec = graph.instantiate()?;
    let set = |exec: &Exec, operations: &mut [Operation]| {
        let given = parameters(context.cu_ctx(), operations);
        // SAFETY: the parameters are readable.
        unsafe { sys::cuGraphExecBatchMemOpNodeSetParams(exec.0, node, &given) }.result()
    };
    let words = ["the number and the types of the operations must stay the same"];
    fails(set(&exec, &mut [write(at, 1)]), CUDA_ERROR_INVALID_VALUE, &words);
    fails(set(&exec, &mut [write(at, 1), write(at, 2)]), CUDA_ERROR_INVALID_VALUE, &words);
    fails(set(&exec, &mut [write(at, 1), barrier()]), CUDA_ERROR_INVALID_VALUE, &words);
    set(&exec, &mut [write(at + 12, 8), wait_for(at + 12, 7)])?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0, 0, 0, 8]);
    let other = Graph::new();
    add(&other, context.cu_ctx(), &mut [write(at, 9)])?;
    fails(exec.update(&other).0, sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, &words);
    Ok(())
}

fn captured() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (at, mut graph) = (address(&buffer), null_mut());
    let mut all = [write(at, 1), barrier(), wait_for(at, 1)];
    // SAFETY: the operations are readable, and the result is writable.
    let graph = unsafe {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        sys::cuStreamBeginCapture_v2(stream.cu_stream(), mode).result()?;
        sys::cuStreamBatchMemOp_v2(stream.cu_stream(), 3, all.as_mut_ptr(), 0).result()?;
        sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph).result()?;
        Graph(graph)
    };
    let [node] = graph.nodes()[..] else { anyhow::bail!("{} nodes", graph.nodes().len()) };
    let numbers = vec![(at, 1), (at, 1)];
    assert_eq!(read(node)?, Found { context: context.cu_ctx(), numbers, count: 3 });
    graph.instantiate()?.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [1, 0, 0, 0]);
    Ok(())
}

fn as_any_node() -> anyhow::Result<()> {
    let (context, stream, buffer) = start()?;
    let (graph, at) = (Graph::new(), address(&buffer));
    let [mut first, mut second] = [[write(at, 1)], [write(at + 4, 2)]];
    let given = |operations: &mut [Operation]| {
        any_kind::parameters(CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, |it| {
            let (count, array) = (operations.len() as u32, operations.as_mut_ptr());
            it.__bindgen_anon_1.memOp = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 {
                ctx: context.cu_ctx(),
                count,
                paramArray: array,
                flags: 0,
            };
        })
    };
    let node = any_kind::add(graph.0, None, given(&mut first))?;
    let exec = graph.instantiate()?;
    let mut changed = given(&mut second);
    // SAFETY: the parameters are readable.
    unsafe { sys::cuGraphExecNodeSetParams(exec.0, node, &raw mut changed) }.result()?;
    exec.launch(&stream)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [0, 2, 0, 0]);
    // SAFETY: the parameters are readable.
    unsafe { sys::cuGraphNodeSetParams(node, &raw mut changed) }.result()?;
    assert_eq!(read(node)?.numbers, [(at + 4, 2)]);
    Ok(())
}

fn refused() -> anyhow::Result<()> {
    let (context, _stream, buffer) = start()?;
    let (graph, at) = (Graph::new(), address(&buffer));
    let invalid = |result: Result<CUgraphNode, DriverError>, words: &str| {
        fails(result, CUDA_ERROR_INVALID_VALUE, &[words]);
    };
    invalid(add(&graph, context.cu_ctx(), &mut [write(at + 2, 0)]), "must be a multiple of 4");
    invalid(add(&graph, context.cu_ctx(), &mut [write(at, 0), write(64, 0)]), "not a GPU address");
    invalid(add(&graph, context.cu_ctx(), &mut [write(at, 0); 256]), "256 operations are more");
    invalid(add(&graph, null_mut(), &mut [write(at, 0)]), "context");
    let mut node = null_mut();
    // SAFETY: null parameters are refused.
    let code = unsafe { sys::cuGraphAddBatchMemOpNode(&raw mut node, graph.0, null(), 0, null()) };
    fails(code.result(), CUDA_ERROR_INVALID_VALUE, &["null"]);
    let mut found = parameters(null_mut(), &mut []);
    let empty = graph.empty(&[])?;
    // SAFETY: the result is writable.
    let code = unsafe { sys::cuGraphBatchMemOpNodeGetParams(empty, &raw mut found) };
    fails(code.result(), CUDA_ERROR_INVALID_VALUE, &["not a batch of memory operations"]);
    assert_eq!(graph.nodes(), [empty]);
    Ok(())
}
