//! The forms of the functions for a graph's edges that take each edge's data. All edges have the default data: the later
//! node starts once the earlier one has ended.

use crate::engine;
use crate::graph::Graph;
use crate::graph_node::{GraphNode, add_edges, all_edges, give_list, node, remove_edges};
use crate::pointer::{Out, Source};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// `CUgraphEdgeData`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EdgeData {
    pub(crate) from_port: u8,
    pub(crate) to_port: u8,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 5],
}

/// Checks the data of edges. Null means the default.
///
/// # Errors
/// Returns `InvalidValue` if reserved bytes are not 0, and `NotSupported` for other data than the default.
pub(crate) fn check(data: Source<EdgeData>, count: usize) -> CudaResult<()> {
    if data.is_null() {
        return Ok(());
    }
    for edge in data.values(count)? {
        if edge.reserved != [0; 5] {
            return Err(invalid("the reserved bytes of an edge's data must be 0"));
        }
        if edge != EdgeData::default() {
            let message = format!(
                "virtual GPU: edges of type {} from port {} to port {} are not supported: only the default is",
                edge.kind, edge.from_port, edge.to_port
            );
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
    }
    Ok(())
}

/// Writes the data of as many edges as `count` says.
fn give_data(to: Out<EdgeData>, count: Out<usize>) -> CudaResult<()> {
    if to.is_null() {
        return Ok(());
    }
    let edges: usize = Source::at(count.address()).value("the pointer to the number of edges")?;
    to.give_all(&vec![EdgeData::default(); edges])
}

pub(crate) fn add(
    of: Graph,
    from: Source<GraphNode>,
    to: Source<GraphNode>,
    data: Source<EdgeData>,
    count: usize,
) -> CudaResult<()> {
    check(data, count)?;
    add_edges(of, from, to, count)
}

pub(crate) fn remove(
    of: Graph,
    from: Source<GraphNode>,
    to: Source<GraphNode>,
    data: Source<EdgeData>,
    count: usize,
) -> CudaResult<()> {
    check(data, count)?;
    remove_edges(of, from, to, count)
}

/// `cuGraphGetEdges_v2`
///
/// # Errors
/// Returns `InvalidValue` if only one of the arrays of nodes is null, or only the array of data is not.
pub(crate) fn all(
    of: Graph,
    from: Out<GraphNode>,
    to: Out<GraphNode>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> CudaResult<()> {
    if from.is_null() && !data.is_null() {
        return Err(invalid("cuGraphGetEdges: the array of data has no arrays of nodes"));
    }
    all_edges(of, from, to, count)?;
    give_data(data, count)
}

pub(crate) fn dependencies_of(
    of: GraphNode,
    to: Out<GraphNode>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> CudaResult<()> {
    if to.is_null() && !data.is_null() {
        return Err(invalid("cuGraphNodeGetDependencies: the array of data has no array of nodes"));
    }
    give_list(&engine::get()?.dependencies(node(of))?, to, count)?;
    give_data(data, count)
}

pub(crate) fn dependents_of(
    of: GraphNode,
    to: Out<GraphNode>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> CudaResult<()> {
    if to.is_null() && !data.is_null() {
        return Err(invalid("cuGraphNodeGetDependentNodes: the array of data has no array of nodes"));
    }
    give_list(&engine::get()?.dependent_nodes(node(of))?, to, count)?;
    give_data(data, count)
}
