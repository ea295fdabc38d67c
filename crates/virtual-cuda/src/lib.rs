//! The FFI layer: `libcuda.so`, with the `cu*` functions that cudarc calls, as well as the `nccl*` functions.
//!
//! [`exports!`] is the single table of exported functions: all functions that cudarc declares for any CUDA version. A
//! function that is not implemented returns an error that names it. Each function converts C arguments to Rust, calls
//! the engine or NCCL, and converts what that returns to a result code. This crate also contains everything that needs
//! the operating system: address space for device pointers, pinned and managed memory that is mapped twice, and a fault
//! handler for the host's accesses to them.

mod answer;
mod calls;
mod context;
mod device;
mod engine;
mod function;
mod graph;
mod guard;
mod host;
mod host_range;
mod interfaces;
mod layout;
mod managed;
mod memory;
mod module;
mod nccl;
mod occupancy;
mod peer;
mod pinned;
mod pointer;
mod pool;
mod stream;
mod types;

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use virtual_gpu_core::recorded::{LiveObject, RecordedCall, StreamOperation};

pub use context::{Affinity, CreateParameters};
pub use graph::{Graph, GraphExec};
pub use host::HostFunction;
pub use layout::{LAYOUTS, Layout};
pub use managed::MemoryLocation;
pub use nccl::{Communicator, Id};
pub use occupancy::{BlockToShared, LaunchAttribute, LaunchConfig};
pub use pointer::{Arguments, Bytes, Out, Source, Text};
pub use pool::{Pool, PoolProperties};
pub use types::{Context, Device, DevicePointer, Event, Function, Module, Stream};

/// An exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name in C.
    pub name: &'static str,
    /// The parameter types, as written in the table; `None` for a function that is not supported.
    pub parameters: Option<&'static [&'static str]>,
}

/// Passes the table of exported symbols to the `$then` macro.
///
/// A function is listed with its parameters and the Rust function behind it. A function that is not implemented is
/// listed only by name and returns an error that contains the name.
#[macro_export]
#[doc(hidden)]
macro_rules! exports {
    ($then:ident) => {
        $then! {
            cuda {
                fn cuInit(flags: c_uint) = device::init;
                fn cuDriverGetVersion(version: Out<c_int>) = device::version;

                fn cuDeviceGet(device: Out<Device>, ordinal: c_int) = device::device;
                fn cuDeviceGetCount(count: Out<c_int>) = device::device_count;
                fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: Device) = device::device_name;
                fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: Device) = device::device_uuid;
                fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: Device) = device::device_uuid;
                fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: Device) = device::compute_capability;
                fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: Device) = device::device_attribute;
                fn cuDeviceCanAccessPeer(can: Out<c_int>, device: Device, peer: Device) = peer::can_access;
                fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_uint, device: Device, peer: Device) = peer::attribute;
                fn cuCtxEnablePeerAccess(peer: Context, flags: c_uint) = peer::enable;
                fn cuCtxDisablePeerAccess(peer: Context) = peer::disable;
                fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) = device::device_total_memory;

                fn cuDevicePrimaryCtxRetain(context: Out<Context>, device: Device) = context::retain_primary;
                fn cuDevicePrimaryCtxRelease_v2(device: Device) = context::release_primary;
                fn cuCtxCreate_v3(context: Out<Context>, affinities: Source<Affinity>, count: c_int, flags: c_uint, device: Device) = context::create_with_affinity;
                fn cuCtxCreate_v4(context: Out<Context>, parameters: Source<CreateParameters>, flags: c_uint, device: Device) = context::create;
                fn cuCtxDestroy_v2(context: Context) = context::destroy;
                fn cuCtxPushCurrent_v2(context: Context) = context::push;
                fn cuCtxPopCurrent_v2(context: Out<Context>) = context::pop;
                fn cuCtxGetCurrent(context: Out<Context>) = context::current_context;
                fn cuCtxSetCurrent(context: Context) = context::set_current_context;
                fn cuCtxGetDevice(device: Out<Device>) = context::current_device;
                fn cuCtxSynchronize() = context::synchronize_context;
                fn cuCtxSetFlags(flags: c_uint) = context::set_flags;
                fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) = context::limit;
                fn cuCtxSetLimit(limit: c_uint, value: usize) = context::set_limit;
                fn cuCtxGetCacheConfig(preference: Out<c_uint>) = context::cache_preference;
                fn cuCtxSetCacheConfig(preference: c_uint) = context::set_cache_preference;
                fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) = context::priorities;
                fn cuProfilerStart() = context::profile;
                fn cuProfilerStop() = context::profile;

                fn cuStreamCreate(stream: Out<Stream>, flags: c_uint) = stream::create_stream;
                fn cuStreamCreateWithPriority(stream: Out<Stream>, flags: c_uint, priority: c_int) = stream::create_stream_with_priority;
                fn cuStreamDestroy_v2(stream: Stream) = stream::destroy_stream;
                fn cuStreamSynchronize(stream: Stream) = stream::synchronize_stream;
                fn cuStreamQuery(stream: Stream) = stream::query_stream;
                fn cuStreamWaitEvent(stream: Stream, event: Event, flags: c_uint) = stream::wait_event;
                fn cuLaunchHostFunc(stream: Stream, function: HostFunction, data: *mut c_void) = host::launch_function;

                fn cuStreamBeginCapture_v2(stream: Stream, mode: c_uint) = graph::begin_capture;
                fn cuStreamEndCapture(stream: Stream, graph: Out<Graph>) = graph::end_capture;
                fn cuStreamIsCapturing(stream: Stream, status: Out<c_uint>) = graph::is_capturing;
                fn cuGraphInstantiateWithFlags(exec: Out<GraphExec>, graph: Graph, flags: c_ulonglong) = graph::instantiate;
                fn cuGraphLaunch(exec: GraphExec, stream: Stream) = graph::launch;
                fn cuGraphUpload(exec: GraphExec, stream: Stream) = graph::upload;
                fn cuGraphDestroy(graph: Graph) = graph::destroy;
                fn cuGraphExecDestroy(exec: GraphExec) = graph::destroy_exec;

                fn cuEventCreate(event: Out<Event>, flags: c_uint) = stream::create_event;
                fn cuEventDestroy_v2(event: Event) = stream::destroy_event;
                fn cuEventRecord(event: Event, stream: Stream) = stream::record_event;
                fn cuEventSynchronize(event: Event) = stream::synchronize_event;
                fn cuEventQuery(event: Event) = stream::query_event;
                fn cuEventElapsedTime(milliseconds: Out<f32>, start: Event, end: Event) = stream::elapsed;
                fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Event, end: Event) = stream::elapsed;

                fn cuMemAlloc_v2(address: Out<DevicePointer>, bytes: usize) = memory::allocate;
                fn cuMemAllocAsync(address: Out<DevicePointer>, bytes: usize, stream: Stream) = memory::allocate_in;
                fn cuMemAllocFromPoolAsync(address: Out<DevicePointer>, bytes: usize, pool: Pool, stream: Stream) = pool::allocate;
                fn cuMemFree_v2(address: DevicePointer) = memory::free;
                fn cuMemFreeAsync(address: DevicePointer, stream: Stream) = memory::free_in;
                fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = memory::memory_info;
                fn cuMemAllocManaged(address: Out<DevicePointer>, bytes: usize, flags: c_uint) = managed::allocate;
                fn cuStreamAttachMemAsync(stream: Stream, address: DevicePointer, bytes: usize, flags: c_uint) = managed::attach;
                fn cuMemPrefetchAsync(address: DevicePointer, bytes: usize, device: Device, stream: Stream) = managed::prefetch;
                fn cuMemPrefetchAsync_v2(address: DevicePointer, bytes: usize, location: MemoryLocation, flags: c_uint, stream: Stream) = managed::prefetch_to;
                fn cuMemAdvise(address: DevicePointer, bytes: usize, advice: c_uint, device: Device) = managed::advise;
                fn cuMemAdvise_v2(address: DevicePointer, bytes: usize, advice: c_uint, location: MemoryLocation) = managed::advise_at;
                fn cuMemHostAlloc(memory: Out<*mut c_void>, bytes: usize, flags: c_uint) = host::allocate;
                fn cuMemAllocHost_v2(memory: Out<*mut c_void>, bytes: usize) = host::allocate_plain;
                fn cuMemHostGetFlags(flags: Out<c_uint>, memory: *mut c_void) = host::flags_of;
                fn cuMemFreeHost(memory: *mut c_void) = host::free;
                fn cuMemcpyHtoD_v2(to: DevicePointer, from: Source<u8>, bytes: usize) = memory::copy_from_host;
                fn cuMemcpyHtoDAsync_v2(to: DevicePointer, from: Source<u8>, bytes: usize, stream: Stream) = memory::copy_from_host_in;
                fn cuMemcpyDtoH_v2(to: Out<u8>, from: DevicePointer, bytes: usize) = memory::copy_to_host;
                fn cuMemcpyDtoHAsync_v2(to: Out<u8>, from: DevicePointer, bytes: usize, stream: Stream) = memory::copy_to_host_in;
                fn cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) = memory::copy;
                fn cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Stream) = memory::copy_in;
                fn cuMemcpyPeerAsync(to: DevicePointer, to_context: Context, from: DevicePointer, from_context: Context, bytes: usize, stream: Stream) = memory::copy_peer;
                fn cuMemsetD8_v2(at: DevicePointer, value: u8, count: usize) = memory::set_8;
                fn cuMemsetD8Async(at: DevicePointer, value: u8, count: usize, stream: Stream) = memory::set_8_in;
                fn cuMemsetD16_v2(at: DevicePointer, value: u16, count: usize) = memory::set_16;
                fn cuMemsetD16Async(at: DevicePointer, value: u16, count: usize, stream: Stream) = memory::set_16_in;
                fn cuMemsetD32_v2(at: DevicePointer, value: c_uint, count: usize) = memory::set_32;
                fn cuMemsetD32Async(at: DevicePointer, value: c_uint, count: usize, stream: Stream) = memory::set_32_in;

                fn cuDeviceGetDefaultMemPool(pool: Out<Pool>, device: Device) = pool::default_of;
                fn cuDeviceGetMemPool(pool: Out<Pool>, device: Device) = pool::current_of;
                fn cuDeviceSetMemPool(device: Device, pool: Pool) = pool::set_current;
                fn cuMemPoolCreate(pool: Out<Pool>, properties: Source<PoolProperties>) = pool::create;
                fn cuMemPoolDestroy(pool: Pool) = pool::destroy;
                fn cuMemPoolTrimTo(pool: Pool, keep: usize) = pool::trim;
                fn cuMemPoolGetAttribute(pool: Pool, attribute: c_uint, value: Out<u8>) = pool::attribute;
                fn cuMemPoolSetAttribute(pool: Pool, attribute: c_uint, value: Source<u8>) = pool::set_attribute;

                fn cuModuleLoad(module: Out<Module>, path: Text) = module::load_module_file;
                fn cuModuleLoadData(module: Out<Module>, image: Text) = module::load_module;
                fn cuModuleLoadDataEx(module: Out<Module>, image: Text, count: c_uint, options: Out<c_uint>, values: Arguments) = module::load_module_with;
                fn cuModuleUnload(module: Module) = module::unload_module;
                fn cuModuleGetFunction(function: Out<Function>, module: Module, name: Text) = module::function;
                fn cuModuleGetGlobal_v2(address: Out<DevicePointer>, bytes: Out<usize>, module: Module, name: Text) = function::global;
                fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Function) = function::attribute;
                fn cuFuncSetAttribute(function: Function, attribute: c_int, value: c_int) = function::set_attribute;
                fn cuFuncSetCacheConfig(function: Function, preference: c_uint) = function::set_cache_preference;
                fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<c_int>, function: Function, block_size: c_int, dynamic: usize) = occupancy::blocks;
                fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<c_int>, function: Function, block_size: c_int, dynamic: usize, flags: c_uint) = occupancy::blocks_with_flags;
                fn cuOccupancyMaxPotentialBlockSize(grid: Out<c_int>, block: Out<c_int>, function: Function, to_shared: BlockToShared, dynamic: usize, limit: c_int) = occupancy::block_size;
                fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<c_int>, block: Out<c_int>, function: Function, to_shared: BlockToShared, dynamic: usize, limit: c_int, flags: c_uint) = occupancy::block_size_with_flags;
                fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Function, blocks: c_int, block_size: c_int) = occupancy::dynamic_shared;
                fn cuOccupancyMaxPotentialClusterSize(size: Out<c_int>, function: Function, launch: Source<LaunchConfig>) = occupancy::cluster_size;
                fn cuOccupancyMaxActiveClusters(clusters: Out<c_int>, function: Function, launch: Source<LaunchConfig>) = occupancy::clusters;
                fn cuLaunchKernel(function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: Arguments, extra: *const c_void) = module::launch;
                fn cuLaunchCooperativeKernel(function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: Arguments) = module::launch_cooperative;
            }
            nccl {
                fn ncclGetVersion(version: Out<c_int>) = nccl::version;
                fn ncclGetUniqueId(id: Out<Id>) = nccl::unique_id;
                fn ncclCommInitAll(comms: Out<Communicator>, count: c_int, devices: Source<c_int>) = nccl::init_all;
                fn ncclCommInitRank(comm: Out<Communicator>, world_size: c_int, id: Id, rank: c_int) = nccl::init_rank;
                fn ncclCommInitRankConfig(comm: Out<Communicator>, world_size: c_int, id: Id, rank: c_int, config: Bytes) = nccl::init_rank_config;
                fn ncclCommSplit(comm: Communicator, color: c_int, key: c_int, child: Out<Communicator>, config: Bytes) = nccl::split;
                fn ncclCommFinalize(comm: Communicator) = nccl::finalize;
                fn ncclCommDestroy(comm: Communicator) = nccl::destroy;
                fn ncclCommAbort(comm: Communicator) = nccl::abort;
                fn ncclCommCount(comm: Communicator, count: Out<c_int>) = nccl::count;
                fn ncclCommUserRank(comm: Communicator, rank: Out<c_int>) = nccl::rank;
                fn ncclCommCuDevice(comm: Communicator, device: Out<c_int>) = nccl::device;
                fn ncclCommGetAsyncError(comm: Communicator, error: Out<c_uint>) = nccl::async_error;
                fn ncclCommInitRankScalable(to: Out<Communicator>, world_size: c_int, rank: c_int, ids: c_int, id: Source<Id>, config: Bytes) = nccl::init_rank_scalable;
                fn ncclCommRegister(comm: Communicator, buffer: DevicePointer, bytes: usize, to: Out<*mut c_void>) = nccl::register;
                fn ncclCommDeregister(comm: Communicator, registration: *mut c_void) = nccl::deregister;
                fn ncclMemAlloc(to: Out<DevicePointer>, bytes: usize) = nccl::allocate;
                fn ncclMemFree(address: DevicePointer) = nccl::free;
                fn ncclRedOpCreatePreMulSum(operator: Out<c_uint>, scalar: Bytes, data_type: c_uint, residence: c_uint, comm: Communicator) = nccl::create_operator;
                fn ncclRedOpDestroy(operator: c_uint, comm: Communicator) = nccl::destroy_operator;
                fn ncclGroupStart() = nccl::group_start;
                fn ncclGroupEnd() = nccl::group_end;
                fn ncclAllReduce(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, operator: c_uint, comm: Communicator, stream: Stream) = nccl::all_reduce;
                fn ncclBroadcast(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, root: c_int, comm: Communicator, stream: Stream) = nccl::broadcast;
                fn ncclBcast(buffer: DevicePointer, count: usize, data_type: c_uint, root: c_int, comm: Communicator, stream: Stream) = nccl::bcast;
                fn ncclReduce(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, operator: c_uint, root: c_int, comm: Communicator, stream: Stream) = nccl::reduce;
                fn ncclAllGather(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, comm: Communicator, stream: Stream) = nccl::all_gather;
                fn ncclReduceScatter(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, operator: c_uint, comm: Communicator, stream: Stream) = nccl::reduce_scatter;
                fn ncclAlltoAll(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, comm: Communicator, stream: Stream) = nccl::all_to_all;
                fn ncclGather(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, root: c_int, comm: Communicator, stream: Stream) = nccl::gather;
                fn ncclScatter(send: DevicePointer, receive: DevicePointer, count: usize, data_type: c_uint, root: c_int, comm: Communicator, stream: Stream) = nccl::scatter;
                fn ncclSend(buffer: DevicePointer, count: usize, data_type: c_uint, peer: c_int, comm: Communicator, stream: Stream) = nccl::send;
                fn ncclRecv(buffer: DevicePointer, count: usize, data_type: c_uint, peer: c_int, comm: Communicator, stream: Stream) = nccl::receive;
            }
            unsupported cuda {
                cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2
                cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties cuCoredumpDeregisterCompleteCallback
                cuCoredumpDeregisterStartCallback cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
                cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuCoredumpSetAttribute
                cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxCreate_v2 cuCtxDetach cuCtxFromGreenCtx cuCtxGetApiVersion
                cuCtxGetDevResource cuCtxGetDevice_v2 cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetSharedMemConfig
                cuCtxRecordEvent cuCtxResetPersistingL2Cache cuCtxSetSharedMemConfig cuCtxSynchronize_v2 cuCtxWaitEvent
                cuDestroyExternalMemory cuDestroyExternalSemaphore cuDevResourceGenerateDesc cuDevSmResourceSplit
                cuDevSmResourceSplitByCount cuDeviceGetByPCIBusId cuDeviceGetCliqueCount cuDeviceGetCliqueInfo
                cuDeviceGetDevResource cuDeviceGetExecAffinitySupport cuDeviceGetFabricClusterUuid
                cuDeviceGetGraphMemAttribute cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid
                cuDeviceGetP2PAtomicCapabilities cuDeviceGetPCIBusId cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth
                cuDeviceGraphMemTrim cuDevicePrimaryCtxGetState cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags_v2
                cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute cuDeviceUnregisterAsyncNotification
                cuEventRecordWithFlags cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
                cuFlushGPUDirectRDMAWrites cuFuncGetModule cuFuncGetName cuFuncGetParamCount cuFuncGetParamInfo cuFuncIsLoaded
                cuFuncLoad cuFuncSetBlockShape cuFuncSetSharedMemConfig cuFuncSetSharedSize cuGetExportTable cuGetProcAddress
                cuGetProcAddress_v2 cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddDependencies
                cuGraphAddDependencies_v2 cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode
                cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode
                cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode
                cuGraphAddMemsetNode cuGraphAddNode cuGraphAddNode_v2 cuGraphAddNode_v3 cuGraphBatchMemOpNodeGetParams
                cuGraphBatchMemOpNodeSetParams cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphConditionalHandleCreate
                cuGraphCreate cuGraphDebugDotPrint cuGraphDestroyNode cuGraphEventRecordNodeGetEvent
                cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
                cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams cuGraphExecEventRecordNodeSetEvent
                cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams
                cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecGetId
                cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
                cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate
                cuGraphExecUpdate_v2 cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
                cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges
                cuGraphGetEdges_v2 cuGraphGetId cuGraphGetNodes cuGraphGetRootNodes cuGraphHostNodeGetParams
                cuGraphHostNodeSetParams cuGraphInstantiateWithParams cuGraphInstantiate_v2 cuGraphKernelNodeCopyAttributes
                cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2
                cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2
                cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams
                cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetContainingGraph
                cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes
                cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams
                cuGraphNodeGetToolsId cuGraphNodeGetType cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphNodeSetParams_v2
                cuGraphReleaseUserObject cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphRetainUserObject
                cuGraphicsMapResources cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer_v2
                cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources
                cuGraphicsUnregisterResource cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxGetDevResource cuGreenCtxGetId
                cuGreenCtxRecordEvent cuGreenCtxStreamCreate cuGreenCtxWaitEvent cuImportExternalMemory
                cuImportExternalSemaphore cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle cuIpcOpenEventHandle
                cuIpcOpenMemHandle_v2 cuKernelGetAttribute cuKernelGetFunction cuKernelGetLibrary cuKernelGetName
                cuKernelGetParamCount cuKernelGetParamInfo cuKernelSetAttribute cuKernelSetCacheConfig cuLaunch
                cuLaunchCooperativeKernelMultiDevice cuLaunchGrid cuLaunchGridAsync cuLaunchHostFunc_v2 cuLaunchKernelEx
                cuLibraryEnumerateKernels cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetKernelCount cuLibraryGetManaged
                cuLibraryGetModule cuLibraryGetUnifiedFunction cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload
                cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuLogicalEndpointAddDevice
                cuLogicalEndpointBindAddr cuLogicalEndpointBindMem cuLogicalEndpointCreate cuLogicalEndpointDestroy
                cuLogicalEndpointExport cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
                cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind cuLogsCurrent cuLogsDumpToFile
                cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback cuMemAddressFree cuMemAddressReserve
                cuMemAllocPitch_v2 cuMemBatchDecompressAsync cuMemCreate cuMemDiscardAndPrefetchBatchAsync
                cuMemDiscardBatchAsync cuMemExportToShareableHandle cuMemGetAccess cuMemGetAddressRange_v2
                cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemGetDefaultMemPool
                cuMemGetHandleForAddressRange cuMemGetLocationInfo cuMemGetMemPool cuMemHostGetDevicePointer_v2
                cuMemHostRegister_v2 cuMemHostUnregister cuMemImportFromShareableHandle cuMemMap cuMemMapArrayAsync
                cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolGetAccess cuMemPoolImportFromShareableHandle
                cuMemPoolImportPointer cuMemPoolSetAccess cuMemPrefetchBatchAsync cuMemRangeGetAttribute
                cuMemRangeGetAttributes cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess cuMemSetMemPool cuMemUnmap
                cuMemcpy cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2 cuMemcpy3DBatchAsync
                cuMemcpy3DBatchAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DWithAttributesAsync cuMemcpy3D_v2
                cuMemcpyAsync cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyBatchAsync
                cuMemcpyBatchAsync_v2 cuMemcpyDtoA_v2 cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuMemcpyPeer
                cuMemcpyWithAttributesAsync cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2
                cuMemsetD2D8Async cuMemsetD2D8_v2 cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMipmappedArrayGetLevel
                cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties cuModuleEnumerateFunctions
                cuModuleGetFunctionCount cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoadFatBinary
                cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindAddr_v2 cuMulticastBindMem cuMulticastBindMem_v2
                cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind cuParamSetSize cuParamSetTexRef cuParamSetf
                cuParamSeti cuParamSetv cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute
                cuProfilerInitialize cuSignalExternalSemaphoresAsync cuStreamAddCallback cuStreamBatchMemOp
                cuStreamBatchMemOp_v2 cuStreamBeginCaptureToCig cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph
                cuStreamCopyAttributes cuStreamEndCaptureToCig cuStreamGetAttribute cuStreamGetCaptureInfo
                cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v3 cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetDevResource
                cuStreamGetDevice cuStreamGetFlags cuStreamGetGreenCtx cuStreamGetId cuStreamGetPriority cuStreamSetAttribute
                cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2 cuStreamWaitValue32
                cuStreamWaitValue32_v2 cuStreamWaitValue64 cuStreamWaitValue64_v2 cuStreamWriteValue32 cuStreamWriteValue32_v2
                cuStreamWriteValue64 cuStreamWriteValue64_v2 cuSurfObjectCreate cuSurfObjectDestroy
                cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray cuTensorMapEncodeIm2col
                cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress cuTexObjectCreate
                cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
                cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray
                cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy
                cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray
                cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor
                cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode
                cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray
                cuThreadExchangeStreamCaptureMode cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
                cuWaitExternalSemaphoresAsync
            }
            unsupported nccl {
                ncclCommShrink ncclCommGrow ncclCommGetUniqueId ncclCommRevoke
                ncclCommSuspend ncclCommResume ncclCommMemStats
                ncclCommWindowRegister ncclCommWindowDeregister ncclWinGetUserPtr
                ncclGroupSimulateEnd ncclPutSignal ncclSignal ncclWaitSignal
            }
        }
    };
}

macro_rules! export {
    (
        cuda { $(fn $cuda:ident($($cuda_arg:ident: $cuda_type:ty),*) = $cuda_to:path;)* }
        nccl { $(fn $nccl:ident($($nccl_arg:ident: $nccl_type:ty),*) = $nccl_to:path;)* }
        unsupported cuda { $($no_cuda:ident)* }
        unsupported nccl { $($no_nccl:ident)* }
    ) => {
        /// The exported symbols, except for the error texts and the symbols that start with `virtualGpu`.
        pub const EXPORTS: &[Export] = &[
            $(Export { name: stringify!($cuda), parameters: Some(&[$(stringify!($cuda_type)),*]) },)*
            $(Export { name: stringify!($nccl), parameters: Some(&[$(stringify!($nccl_type)),*]) },)*
            $(Export { name: stringify!($no_cuda), parameters: None },)*
            $(Export { name: stringify!($no_nccl), parameters: None },)*
        ];

        $(
            /// # Safety
            /// The arguments must meet the requirements in the CUDA driver's documentation.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $cuda($($cuda_arg: $cuda_type),*) -> c_uint {
                let arguments: &[u64] = &[$(calls::argument(&$cuda_arg)),*];
                const FUNCTION: &calls::Function = &calls::Function::named(stringify!($cuda));
                answer::cuda(stringify!($cuda), || {
                    calls::watch(FUNCTION, arguments, || $cuda_to($($cuda_arg),*))
                })
            }
        )*
        $(
            /// # Safety
            /// The arguments must meet the requirements in NCCL's documentation.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $nccl($($nccl_arg: $nccl_type),*) -> c_uint {
                let arguments: &[u64] = &[$(calls::argument(&$nccl_arg)),*];
                const FUNCTION: &calls::Function = &calls::Function::named(stringify!($nccl));
                answer::nccl(stringify!($nccl), || {
                    calls::watch(FUNCTION, arguments, || $nccl_to($($nccl_arg),*))
                })
            }

            const _: () = {
                /// The same function under the name that a profiler calls when it has replaced the first one
                /// ("Profiling", NCCL's user guide).
                ///
                /// # Safety
                /// The arguments must meet the requirements in NCCL's documentation.
                #[unsafe(export_name = concat!("p", stringify!($nccl)))]
                unsafe extern "C" fn profiled($($nccl_arg: $nccl_type),*) -> c_uint {
                    // SAFETY: the caller ensures the same.
                    unsafe { $nccl($($nccl_arg),*) }
                }
            };
        )*
        $(
            /// Not supported. Accepts any arguments, because in Linux's C calling convention, the caller cleans them
            /// up.
            #[unsafe(no_mangle)]
            pub extern "C" fn $no_cuda() -> c_uint {
                answer::unsupported(stringify!($no_cuda))
            }
        )*
        $(
            /// Not supported.
            #[unsafe(no_mangle)]
            pub extern "C" fn $no_nccl() -> c_uint {
                answer::unsupported_nccl(stringify!($no_nccl))
            }
        )*
    };
}

exports!(export);

/// Returns the C name of a result code.
///
/// # Safety
/// `text` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_uint, text: Out<*const c_char>) -> c_uint {
    answer::error_name(code, text)
}

/// Returns the message from this thread's last call that returned `code`, or what the code means.
///
/// # Safety
/// `text` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_uint, text: Out<*const c_char>) -> c_uint {
    answer::error_text(code, text)
}

/// Returns what an NCCL result code means.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_uint) -> *const c_char {
    answer::nccl_error_text(code)
}

/// Returns the message from this thread's last failed NCCL call. As in NCCL, the communicator does not matter.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: Communicator) -> *const c_char {
    answer::nccl_last_error()
}

/// NCCL reads `NCCL_DEBUG` again. Deprecated since NCCL 2.24, and here without effect.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInit() {}

/// Makes reports skip the sources under the folder `path`: calls made there are shown at their callers' lines.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuHideLibrary(path: Text) {
    if let Some(path) = path.text() {
        virtual_gpu_core::source_location::hide_library(Path::new(path));
    }
}

/// Names a stream after its role, such as `compute`, for reports and traces. An invalid handle is ignored.
///
/// # Safety
/// `role` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuNameStream(stream: Stream, role: Text) {
    if let Some(role) = role.text() {
        stream::name(stream, role);
    }
}

/// Makes reports show the nearest line in the sources under the folder `path` first.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuShowSourcesFirst(path: Text) {
    if let Some(path) = path.text() {
        virtual_gpu_core::source_location::show_sources_first(Path::new(path));
    }
}

/// Starts a record of the calls that the program's own sources make (see [`virtualGpuShowSourcesFirst`]) on this
/// thread, or on any thread if `any_thread` is not 0. Returns the record's number.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuRecordCalls(any_thread: c_int) -> c_ulonglong {
    calls::record(any_thread != 0)
}

/// Ends a record and calls `visit` with each of its calls, in order, passing `data` each time.
///
/// # Safety
/// `visit` may be called with `data` and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuRecordedCalls(
    record: c_ulonglong,
    visit: unsafe extern "C" fn(*const RecordedCall, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    calls::take_record(record, |call| unsafe { visit(call, data) });
}

/// Records, from now on, when each operation of a stream runs.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuRecordOperations() {
    stream::record_operations();
}

/// Calls `visit` with each recorded operation of GPU `gpu` that has run, in the order in which they were enqueued, and
/// with `data`.
///
/// # Safety
/// `visit` may be called with `data`, and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuOperations(
    gpu: c_int,
    visit: unsafe extern "C" fn(*const StreamOperation, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    stream::operations(gpu, |operation| unsafe { visit(operation, data) });
}

/// From now on, tracks the streams, events, modules, communicators, buffers, and so on that the program's own sources
/// create.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuTrackObjects() {
    calls::track_objects();
}

/// Calls `visit` with each live tracked object, in order of creation, passing `data` each time.
///
/// # Safety
/// `visit` may be called with `data` and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuLiveObjects(
    visit: unsafe extern "C" fn(*const LiveObject, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    calls::live_objects(|object| unsafe { visit(object, data) });
}

/// Makes the `nth` call (counting from 1) that the program's own sources make from now on return an error. Counts calls
/// on this thread, or on any thread if `any_thread` is not 0. If `nth` is 0, no call fails. Calls whose error cudarc
/// can't return don't count.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuFailCall(nth: c_ulonglong, any_thread: c_int) {
    calls::fail(nth, any_thread != 0);
}

/// If a call has failed since [`virtualGpuFailCall`], calls `visit` with that call and with `data`.
///
/// # Safety
/// `visit` may be called with `data` and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuFailedCall(
    visit: unsafe extern "C" fn(*const RecordedCall, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    calls::failed(|call| unsafe { visit(call, data) });
}
