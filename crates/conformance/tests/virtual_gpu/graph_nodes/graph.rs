//! Calls of the driver's functions for graphs.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeType, CUresult};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};

use crate::device::untracked;

use sys::CUgraphExecUpdateResult_enum as Update;

/// Returns the text of kernels of one thread, which change the number at `to` by `value`.
fn text() -> CString {
    let kernel = |(name, opcode): (&str, &str)| {
        format!(
            ".visible .entry {name}(.param .u64 to, .param .u32 value) {{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [value];
    ld.global.u32 %r2, [%rd1];
    {opcode} %r3, %r1, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
}}
"
        )
    };
    let kernels = [("adds", "add.u32"), ("multiplies", "mul.lo.u32")].map(kernel).concat();
    CString::new(format!(".version 8.0\n.target sm_70\n.address_size 64\n{kernels}")).unwrap()
}

/// Returns a kernel in the current context.
pub(super) fn kernel(name: &str) -> sys::CUfunction {
    let (mut module, mut function) = (null_mut(), null_mut());
    let (text, name) = (text(), CString::new(name).unwrap());
    // SAFETY: the text and the name are C strings, and the results are writable.
    unsafe {
        sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()).result().unwrap();
        sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()).result().unwrap();
    }
    function
}

/// Calls `with` with the parameters of a kernel of one thread, which changes the number at `to` by `value`.
pub(super) fn with_parameters<T>(
    function: sys::CUfunction,
    to: u64,
    value: u32,
    with: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> T,
) -> T {
    let mut values = [(&raw const to).cast_mut().cast::<c_void>(), (&raw const value).cast_mut().cast()];
    let kernel_params = values.as_mut_ptr();
    with(&sys::CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: kernel_params,
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    })
}

/// A graph, which is destroyed when it is dropped.
pub(super) struct Graph(pub(super) CUgraph);

pub(super) type Added = Result<CUgraphNode, DriverError>;

impl Graph {
    pub(super) fn new() -> Self {
        let mut graph = null_mut();
        // SAFETY: the result is writable.
        unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result().unwrap();
        Self(graph)
    }

    pub(super) fn add(
        &self,
        after: &[CUgraphNode],
        add: impl FnOnce(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize) -> CUresult,
    ) -> Added {
        let mut node = null_mut();
        add(&raw mut node, self.0, after.as_ptr(), after.len()).result().map(|()| node)
    }

    pub(super) fn empty(&self, after: &[CUgraphNode]) -> Added {
        // SAFETY: the arguments are those of a C caller.
        self.add(after, |to, graph, from, count| unsafe { sys::cuGraphAddEmptyNode(to, graph, from, count) })
    }

    pub(super) fn kernel(
        &self,
        after: &[CUgraphNode],
        function: sys::CUfunction,
        to: u64,
        value: u32,
    ) -> Added {
        with_parameters(function, to, value, |parameters| {
            // SAFETY: as above.
            self.add(after, |to, graph, from, count| unsafe {
                sys::cuGraphAddKernelNode_v2(to, graph, from, count, parameters)
            })
        })
    }

    /// Sets `count` elements of `element` bytes.
    pub(super) fn set(
        &self,
        after: &[CUgraphNode],
        at: u64,
        (value, element, count): (u32, u32, usize),
        context: &CudaContext,
    ) -> Added {
        let set = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: at,
            pitch: 0,
            value,
            elementSize: element,
            width: count,
            height: 1,
        };
        // SAFETY: as above.
        self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddMemsetNode(to, graph, from, n, &raw const set, context.cu_ctx())
        })
    }

    pub(super) fn copy(
        &self,
        after: &[CUgraphNode],
        copy: &sys::CUDA_MEMCPY3D,
        context: &CudaContext,
    ) -> Added {
        // SAFETY: as above; the memory outlives the launches.
        self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddMemcpyNode(to, graph, from, n, copy, context.cu_ctx())
        })
    }

    pub(super) fn host(&self, after: &[CUgraphNode], function: sys::CUhostFn, data: *mut c_void) -> Added {
        let host = sys::CUDA_HOST_NODE_PARAMS { fn_: function, userData: data };
        // SAFETY: as above.
        self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddHostNode(to, graph, from, n, &raw const host)
        })
    }

    pub(super) fn child(&self, after: &[CUgraphNode], child: &Self) -> Added {
        // SAFETY: as above.
        self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddChildGraphNode(to, graph, from, n, child.0)
        })
    }

    pub(super) fn record(&self, after: &[CUgraphNode], event: sys::CUevent) -> Added {
        // SAFETY: as above.
        self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddEventRecordNode(to, graph, from, n, event)
        })
    }

    pub(super) fn wait(&self, after: &[CUgraphNode], event: sys::CUevent) -> Added {
        // SAFETY: as above.
        self.add(after, |to, graph, from, n| unsafe {
            sys::cuGraphAddEventWaitNode(to, graph, from, n, event)
        })
    }

    pub(super) fn connect(&self, from: CUgraphNode, to: CUgraphNode) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { sys::cuGraphAddDependencies(self.0, &raw const from, &raw const to, 1) }.result()
    }

    pub(super) fn disconnect(&self, from: CUgraphNode, to: CUgraphNode) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { sys::cuGraphRemoveDependencies(self.0, &raw const from, &raw const to, 1) }.result()
    }

    pub(super) fn instantiate(&self) -> Result<Exec, DriverError> {
        let mut exec = null_mut();
        // SAFETY: as above.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, self.0, 0) }.result()?;
        Ok(Exec(exec))
    }

    pub(super) fn nodes(&self) -> Vec<CUgraphNode> {
        // SAFETY: as above.
        list(|to, count| unsafe { sys::cuGraphGetNodes(self.0, to, count) })
    }

    pub(super) fn roots(&self) -> Vec<CUgraphNode> {
        // SAFETY: as above.
        list(|to, count| unsafe { sys::cuGraphGetRootNodes(self.0, to, count) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is alive.
        unsafe { sys::cuGraphDestroy(self.0) }.result().unwrap();
    }
}

/// An executable graph, which is destroyed when it is dropped.
pub(super) struct Exec(pub(super) CUgraphExec);

impl Exec {
    pub(super) fn launch(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { sys::cuGraphLaunch(self.0, stream.cu_stream()) }.result()
    }

    /// Returns the code and what the driver reports about an update.
    pub(super) fn update(
        &self,
        graph: &Graph,
    ) -> (Result<(), DriverError>, sys::CUgraphExecUpdateResultInfo) {
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: Update::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        // SAFETY: the result is writable.
        let code = unsafe { sys::cuGraphExecUpdate_v2(self.0, graph.0, &raw mut info) };
        (code.result(), info)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // SAFETY: the graph is alive.
        unsafe { sys::cuGraphExecDestroy(self.0) }.result().unwrap();
    }
}

/// Returns all handles that a function lists: first asks for their number, then for more than there are.
pub(super) fn list(call: impl Fn(*mut CUgraphNode, *mut usize) -> CUresult) -> Vec<CUgraphNode> {
    let (mut count, mut nodes) = (0, [0xdead_usize as CUgraphNode; 16]);
    call(null_mut(), &raw mut count).result().unwrap();
    let mut room = count + 2;
    call(nodes.as_mut_ptr(), &raw mut room).result().unwrap();
    assert_eq!(room, count);
    assert!(nodes[count..count + 2].iter().all(|node| node.is_null()));
    assert!(!nodes[count + 2].is_null());
    nodes[..count].to_vec()
}

pub(super) fn kind(node: CUgraphNode) -> CUgraphNodeType {
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the result is writable.
    unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) }.result().unwrap();
    kind
}

pub(super) fn dependencies(node: CUgraphNode) -> Vec<CUgraphNode> {
    // SAFETY: the results are writable.
    list(|to, count| unsafe { sys::cuGraphNodeGetDependencies(node, to, count) })
}

pub(super) fn dependents(node: CUgraphNode) -> Vec<CUgraphNode> {
    // SAFETY: the results are writable.
    list(|to, count| unsafe { sys::cuGraphNodeGetDependentNodes(node, to, count) })
}

/// Returns a copy of `bytes` bytes from the device to the host.
pub(super) fn to_host(from: u64, to: *mut u32, bytes: usize) -> sys::CUDA_MEMCPY3D {
    // SAFETY: all fields are numbers, pointers, or the enumeration that is set below.
    let mut copy = unsafe {
        let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
        (*copy.as_mut_ptr()).srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        (*copy.as_mut_ptr()).dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        copy.assume_init()
    };
    copy.srcDevice = from;
    copy.dstHost = to.cast();
    (copy.WidthInBytes, copy.Height, copy.Depth) = (bytes, 1, 1);
    copy
}

pub(super) fn between(from: u64, to: u64, bytes: usize) -> sys::CUDA_MEMCPY3D {
    let mut copy = to_host(from, null_mut(), bytes);
    (copy.dstMemoryType, copy.dstDevice) = (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, to);
    copy
}

pub(super) fn start() -> anyhow::Result<(Arc<CudaContext>, Arc<CudaStream>, CudaSlice<u32>)> {
    let context = untracked(0);
    let stream = context.new_stream()?;
    let buffer = stream.alloc_zeros::<u32>(4)?;
    stream.synchronize()?;
    Ok((context, stream, buffer))
}

pub(super) unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the caller passes a counter that outlives the launches.
    unsafe { &*counter.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
}

/// Captures a memset of `buffer` to `value` and a kernel that adds 1.
pub(super) fn capture(
    stream: &CudaStream,
    at: u64,
    value: u32,
    adds: sys::CUfunction,
) -> anyhow::Result<Graph> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let mut graph = null_mut();
    // SAFETY: the stream and the buffer are alive.
    unsafe {
        sys::cuStreamBeginCapture_v2(stream.cu_stream(), mode).result()?;
        sys::cuMemsetD32Async(at, value, 4, stream.cu_stream()).result()?;
        with_parameters(adds, at, 1, |it| {
            sys::cuLaunchKernel(adds, 1, 1, 1, 1, 1, 1, 0, stream.cu_stream(), it.kernelParams, null_mut())
        })
        .result()?;
        sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph).result()?;
    }
    Ok(Graph(graph))
}
