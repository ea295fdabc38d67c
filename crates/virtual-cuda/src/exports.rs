//! The table of exported functions: all functions of CUDA 12.9, and those of NCCL. A function that is not implemented
//! returns an error that names it.

/// Passes the table of exported symbols to the `$then` macro.
///
/// A function is listed with its parameters and the Rust function behind it. `ptds` or `ptsz` after it also exports the
/// form with this suffix, in which stream 0 is the thread's own default stream. Functions under `older` are
/// versions that only programs for older CUDA releases call. A function that is not
/// implemented is listed only by name and returns an error that contains the name.
#[macro_export]
#[doc(hidden)]
macro_rules! exports {
    ($then:ident) => {
        $then! {
            cuda {
                fn cuInit(flags: c_uint) = device::init;
                fn cuDriverGetVersion(version: Out<c_int>) = device::version;
                fn cuGetProcAddress_v2(symbol: Text, address: Out<*mut c_void>, version: c_int, flags: c_ulonglong, status: Out<c_uint>) = symbols::address_and_status;

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
                fn cuDeviceGetPCIBusId(id: Out<c_char>, len: c_int, device: Device) = device::pci_bus_id;
                fn cuDeviceGetByPCIBusId(device: Out<Device>, id: Text) = device::by_pci_bus_id;
                fn cuDeviceGetProperties(properties: Out<DeviceProperties>, device: Device) = device::properties;
                fn cuDeviceGetExecAffinitySupport(supported: Out<c_int>, kind: c_uint, device: Device) = device::affinity_support;
                fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) = device::device_total_memory;

                fn cuTensorMapEncodeTiled(map: Out<TensorMap>, element: c_uint, rank: c_uint, address: DevicePointer, dimensions: Source<c_ulonglong>, strides: Source<c_ulonglong>, size: Source<c_uint>, steps: Source<c_uint>, interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint) = tensor_map::encode_tiled;
                fn cuTensorMapEncodeIm2col(map: Out<TensorMap>, element: c_uint, rank: c_uint, address: DevicePointer, dimensions: Source<c_ulonglong>, strides: Source<c_ulonglong>, lower: Source<c_int>, upper: Source<c_int>, channels: c_uint, pixels: c_uint, steps: Source<c_uint>, interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint) = tensor_map::encode_im2col;
                fn cuTensorMapReplaceAddress(map: Out<TensorMap>, address: DevicePointer) = tensor_map::replace_address;

                fn cuArrayCreate_v2(array: Out<Array>, description: Source<PlaneDescription>) = array::create;
                fn cuArray3DCreate_v2(array: Out<Array>, description: Source<VolumeDescription>) = array::create_3d;
                fn cuArrayDestroy(array: Array) = array::destroy;
                fn cuArrayGetDescriptor_v2(description: Out<PlaneDescription>, array: Array) = array::description;
                fn cuArray3DGetDescriptor_v2(description: Out<VolumeDescription>, array: Array) = array::description_3d;
                fn cuMipmappedArrayCreate(array: Out<MipmappedArray>, description: Source<VolumeDescription>, levels: c_uint) = array::create_mipmapped;
                fn cuMipmappedArrayDestroy(array: MipmappedArray) = array::destroy_mipmapped;
                fn cuMipmappedArrayGetLevel(level: Out<Array>, array: MipmappedArray, number: c_uint) = array::level;
                fn cuMemcpyHtoA_v2(to: Array, offset: usize, from: Source<u8>, bytes: usize) = array::copy_from_host, ptds;
                fn cuMemcpyHtoAAsync_v2(to: Array, offset: usize, from: Source<u8>, bytes: usize, stream: Stream) = array::copy_from_host_in, ptsz;
                fn cuMemcpyAtoH_v2(to: Out<u8>, from: Array, offset: usize, bytes: usize) = array::copy_to_host, ptds;
                fn cuMemcpyAtoHAsync_v2(to: Out<u8>, from: Array, offset: usize, bytes: usize, stream: Stream) = array::copy_to_host_in, ptsz;
                fn cuMemcpyDtoA_v2(to: Array, offset: usize, from: DevicePointer, bytes: usize) = array::copy_from_device, ptds;
                fn cuMemcpyAtoD_v2(to: DevicePointer, from: Array, offset: usize, bytes: usize) = array::copy_to_device, ptds;
                fn cuMemcpyAtoA_v2(to: Array, to_offset: usize, from: Array, from_offset: usize, bytes: usize) = array::copy_between, ptds;

                fn cuTexObjectCreate(texture: Out<c_ulonglong>, resource: Source<ResourceDescription>, description: Source<TextureDescription>, view: Source<ViewDescription>) = texture::create;
                fn cuTexObjectDestroy(texture: c_ulonglong) = texture::destroy;
                fn cuTexObjectGetResourceDesc(resource: Out<ResourceDescription>, texture: c_ulonglong) = texture::resource;
                fn cuTexObjectGetTextureDesc(description: Out<TextureDescription>, texture: c_ulonglong) = texture::description;
                fn cuTexObjectGetResourceViewDesc(view: Out<ViewDescription>, texture: c_ulonglong) = texture::view;
                fn cuSurfObjectCreate(surface: Out<c_ulonglong>, resource: Source<ResourceDescription>) = texture::create_surface;
                fn cuSurfObjectDestroy(surface: c_ulonglong) = texture::destroy_surface;
                fn cuSurfObjectGetResourceDesc(resource: Out<ResourceDescription>, surface: c_ulonglong) = texture::surface_resource;
                fn cuDeviceGetTexture1DLinearMaxWidth(elements: Out<usize>, format: c_uint, channels: c_uint, device: Device) = array::most_linear;

                fn cuDevicePrimaryCtxRetain(context: Out<Context>, device: Device) = context::retain_primary;
                fn cuDevicePrimaryCtxRelease_v2(device: Device) = context::release_primary;
                fn cuDevicePrimaryCtxReset_v2(device: Device) = context::reset_primary;
                fn cuDevicePrimaryCtxSetFlags_v2(device: Device, flags: c_uint) = context::set_primary_flags;
                fn cuDevicePrimaryCtxGetState(device: Device, flags: Out<c_uint>, active: Out<c_int>) = context::primary_state;
                fn cuCtxCreate_v2(context: Out<Context>, flags: c_uint, device: Device) = context::create_plain;
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
                fn cuCtxGetFlags(flags: Out<c_uint>) = context::flags;
                fn cuCtxGetId(context: Context, id: Out<c_ulonglong>) = context::id;
                fn cuCtxGetApiVersion(context: Context, version: Out<c_uint>) = context::api_version;
                fn cuCtxGetSharedMemConfig(config: Out<c_uint>) = context::shared_memory_config;
                fn cuCtxSetSharedMemConfig(config: c_uint) = context::set_shared_memory_config;
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
                fn cuStreamSynchronize(stream: Stream) = stream::synchronize_stream, ptsz;
                fn cuStreamQuery(stream: Stream) = stream::query_stream, ptsz;
                fn cuStreamWaitEvent(stream: Stream, event: Event, flags: c_uint) = stream::wait_event, ptsz;
                fn cuStreamGetCtx(stream: Stream, context: Out<Context>) = stream::context, ptsz;
                fn cuStreamGetCtx_v2(stream: Stream, context: Out<Context>, green: Out<GreenContext>) = stream::contexts, ptsz;
                fn cuStreamGetFlags(stream: Stream, flags: Out<c_uint>) = introspection::stream_flags, ptsz;
                fn cuStreamGetPriority(stream: Stream, priority: Out<c_int>) = introspection::stream_priority, ptsz;
                fn cuStreamGetId(stream: Stream, id: Out<c_ulonglong>) = introspection::stream_number, ptsz;
                fn cuStreamGetDevice(stream: Stream, device: Out<Device>) = introspection::stream_device, ptsz;
                fn cuStreamGetAttribute(stream: Stream, attribute: c_uint, value: Out<AttributeValue>) = stream_attribute::get, ptsz;
                fn cuStreamSetAttribute(stream: Stream, attribute: c_uint, value: Source<AttributeValue>) = stream_attribute::set, ptsz;
                fn cuStreamCopyAttributes(to: Stream, from: Stream) = stream_attribute::copy, ptsz;
                fn cuStreamWriteValue32_v2(stream: Stream, at: DevicePointer, value: c_uint, flags: c_uint) = stream_value::write_32, ptsz;
                fn cuStreamWriteValue64_v2(stream: Stream, at: DevicePointer, value: c_ulonglong, flags: c_uint) = stream_value::write_64, ptsz;
                fn cuStreamWaitValue32_v2(stream: Stream, at: DevicePointer, value: c_uint, flags: c_uint) = stream_value::wait_32, ptsz;
                fn cuStreamWaitValue64_v2(stream: Stream, at: DevicePointer, value: c_ulonglong, flags: c_uint) = stream_value::wait_64, ptsz;
                fn cuStreamBatchMemOp_v2(stream: Stream, count: c_uint, operations: Source<BatchOperation>, flags: c_uint) = stream_value::batch, ptsz;
                fn cuStreamAddCallback(stream: Stream, callback: StreamCallback, data: *mut c_void, flags: c_uint) = host::add_callback, ptsz;
                fn cuLaunchHostFunc(stream: Stream, function: HostFunction, data: *mut c_void) = host::launch_function, ptsz;

                fn cuStreamBeginCapture_v2(stream: Stream, mode: c_uint) = capture::begin, ptsz;
                fn cuStreamEndCapture(stream: Stream, graph: Out<Graph>) = capture::end, ptsz;
                fn cuStreamIsCapturing(stream: Stream, status: Out<c_uint>) = capture::is_capturing, ptsz;
                fn cuStreamGetCaptureInfo_v2(stream: Stream, status: Out<c_uint>, id: Out<c_ulonglong>, graph: Out<Graph>, after: Out<Source<GraphNode>>, count: Out<usize>) = capture::info, ptsz;
                fn cuStreamGetCaptureInfo_v3(stream: Stream, status: Out<c_uint>, id: Out<c_ulonglong>, graph: Out<Graph>, after: Out<Source<GraphNode>>, data: Out<Source<EdgeData>>, count: Out<usize>) = capture::info_with_data, ptsz;
                fn cuStreamUpdateCaptureDependencies(stream: Stream, nodes: Source<GraphNode>, count: usize, flags: c_uint) = capture::update, ptsz;
                fn cuStreamUpdateCaptureDependencies_v2(stream: Stream, nodes: Source<GraphNode>, data: Source<EdgeData>, count: usize, flags: c_uint) = capture::update_with_data, ptsz;
                fn cuStreamBeginCaptureToGraph(stream: Stream, graph: Graph, after: Source<GraphNode>, data: Source<EdgeData>, count: usize, mode: c_uint) = capture::begin_to, ptsz;
                fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) = capture::exchange_mode;
                fn cuGraphInstantiateWithFlags(exec: Out<GraphExec>, graph: Graph, flags: c_ulonglong) = graph::instantiate;
                fn cuGraphInstantiateWithParams(exec: Out<GraphExec>, graph: Graph, parameters: Out<InstantiateParameters>) = graph::instantiate_with, ptsz;
                fn cuGraphExecGetFlags(exec: GraphExec, flags: Out<c_ulonglong>) = graph::flags_of;
                fn cuGraphLaunch(exec: GraphExec, stream: Stream) = graph::launch, ptsz;
                fn cuGraphUpload(exec: GraphExec, stream: Stream) = graph::upload, ptsz;
                fn cuGraphDestroy(graph: Graph) = graph::destroy;
                fn cuGraphExecDestroy(exec: GraphExec) = graph::destroy_exec;

                fn cuGraphCreate(graph: Out<Graph>, flags: c_uint) = graph_node::create;
                fn cuGraphClone(clone: Out<Graph>, graph: Graph) = graph_node::clone;
                fn cuGraphAddEmptyNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize) = graph_node::add_empty;
                fn cuGraphAddKernelNode_v2(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Source<KernelParameters>) = graph_node::add_kernel;
                fn cuGraphAddMemcpyNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, copy: Source<Copy3D>, context: Context) = graph_node::add_copy;
                fn cuGraphAddMemsetNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Source<SetParameters>, context: Context) = graph_node::add_set;
                fn cuGraphAddHostNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Source<HostParameters>) = graph_node::add_host;
                fn cuGraphAddChildGraphNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, child: Graph) = graph_node::add_child;
                fn cuGraphChildGraphNodeGetGraph(node: GraphNode, graph: Out<Graph>) = graph_node::child;
                fn cuGraphAddEventRecordNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, event: Event) = graph_node::add_record;
                fn cuGraphAddEventWaitNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, event: Event) = graph_node::add_wait;
                fn cuGraphAddMemAllocNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Out<AllocationNodeParameters>) = graph_memory::add_allocation;
                fn cuGraphAddMemFreeNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, address: DevicePointer) = graph_memory::add_free;
                fn cuGraphMemAllocNodeGetParams(node: GraphNode, parameters: Out<AllocationNodeParameters>) = graph_memory::allocation;
                fn cuGraphMemFreeNodeGetParams(node: GraphNode, address: Out<DevicePointer>) = graph_memory::freed;
                fn cuDeviceGraphMemTrim(device: Device) = graph_memory::trim;
                fn cuDeviceGetGraphMemAttribute(device: Device, attribute: c_uint, value: Out<u8>) = graph_memory::attribute;
                fn cuDeviceSetGraphMemAttribute(device: Device, attribute: c_uint, value: Source<u8>) = graph_memory::set_attribute;
                fn cuGraphAddNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Out<NodeParameters>) = graph_parameters::add;
                fn cuGraphAddNode_v2(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, data: Source<EdgeData>, count: usize, parameters: Out<NodeParameters>) = graph_parameters::add_with_data;
                fn cuGraphAddDependencies_v2(graph: Graph, from: Source<GraphNode>, to: Source<GraphNode>, data: Source<EdgeData>, count: usize) = graph_edges::add;
                fn cuGraphRemoveDependencies_v2(graph: Graph, from: Source<GraphNode>, to: Source<GraphNode>, data: Source<EdgeData>, count: usize) = graph_edges::remove;
                fn cuGraphGetEdges_v2(graph: Graph, from: Out<GraphNode>, to: Out<GraphNode>, data: Out<EdgeData>, count: Out<usize>) = graph_edges::all;
                fn cuGraphNodeGetDependencies_v2(node: GraphNode, nodes: Out<GraphNode>, data: Out<EdgeData>, count: Out<usize>) = graph_edges::dependencies_of;
                fn cuGraphNodeGetDependentNodes_v2(node: GraphNode, nodes: Out<GraphNode>, data: Out<EdgeData>, count: Out<usize>) = graph_edges::dependents_of;
                fn cuGraphDestroyNode(node: GraphNode) = graph_node::destroy;
                fn cuGraphAddDependencies(graph: Graph, from: Source<GraphNode>, to: Source<GraphNode>, count: usize) = graph_node::add_edges;
                fn cuGraphRemoveDependencies(graph: Graph, from: Source<GraphNode>, to: Source<GraphNode>, count: usize) = graph_node::remove_edges;
                fn cuGraphGetNodes(graph: Graph, nodes: Out<GraphNode>, count: Out<usize>) = graph_node::nodes;
                fn cuGraphGetRootNodes(graph: Graph, nodes: Out<GraphNode>, count: Out<usize>) = graph_node::root_nodes;
                fn cuGraphGetEdges(graph: Graph, from: Out<GraphNode>, to: Out<GraphNode>, count: Out<usize>) = graph_node::all_edges;
                fn cuGraphNodeGetType(node: GraphNode, kind: Out<c_uint>) = graph_node::kind;
                fn cuGraphNodeGetDependencies(node: GraphNode, nodes: Out<GraphNode>, count: Out<usize>) = graph_node::dependencies_of;
                fn cuGraphNodeGetDependentNodes(node: GraphNode, nodes: Out<GraphNode>, count: Out<usize>) = graph_node::dependents_of;
                fn cuGraphKernelNodeGetParams_v2(node: GraphNode, parameters: Out<KernelParameters>) = graph_change::kernel;
                fn cuGraphKernelNodeSetParams_v2(node: GraphNode, parameters: Source<KernelParameters>) = graph_change::set_kernel;
                fn cuGraphExecKernelNodeSetParams_v2(exec: GraphExec, node: GraphNode, parameters: Source<KernelParameters>) = graph_change::set_executable_kernel;
                fn cuGraphExecUpdate_v2(exec: GraphExec, graph: Graph, info: Out<UpdateInfo>) = graph_node::update;
                fn cuGraphMemcpyNodeGetParams(node: GraphNode, copy: Out<Copy3D>) = graph_change::copy;
                fn cuGraphMemcpyNodeSetParams(node: GraphNode, copy: Source<Copy3D>) = graph_change::set_copy;
                fn cuGraphExecMemcpyNodeSetParams(exec: GraphExec, node: GraphNode, copy: Source<Copy3D>, context: Context) = graph_change::set_executable_copy;
                fn cuGraphMemsetNodeGetParams(node: GraphNode, parameters: Out<SetParameters>) = graph_change::set;
                fn cuGraphMemsetNodeSetParams(node: GraphNode, parameters: Source<SetParameters>) = graph_change::set_set;
                fn cuGraphExecMemsetNodeSetParams(exec: GraphExec, node: GraphNode, parameters: Source<SetParameters>, context: Context) = graph_change::set_executable_set;
                fn cuGraphHostNodeGetParams(node: GraphNode, parameters: Out<HostParameters>) = graph_change::host;
                fn cuGraphHostNodeSetParams(node: GraphNode, parameters: Source<HostParameters>) = graph_change::set_host;
                fn cuGraphExecHostNodeSetParams(exec: GraphExec, node: GraphNode, parameters: Source<HostParameters>) = graph_change::set_executable_host;
                fn cuGraphAddBatchMemOpNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Source<BatchNodeParameters>) = graph_values::add;
                fn cuGraphBatchMemOpNodeGetParams(node: GraphNode, parameters: Out<BatchNodeParameters>) = graph_values::parameters;
                fn cuGraphBatchMemOpNodeSetParams(node: GraphNode, parameters: Source<BatchNodeParameters>) = graph_values::set;
                fn cuGraphExecBatchMemOpNodeSetParams(exec: GraphExec, node: GraphNode, parameters: Source<BatchNodeParameters>) = graph_values::set_executable;
                fn cuGraphEventRecordNodeGetEvent(node: GraphNode, event: Out<Event>) = graph_change::record;
                fn cuGraphEventRecordNodeSetEvent(node: GraphNode, event: Event) = graph_change::set_record;
                fn cuGraphExecEventRecordNodeSetEvent(exec: GraphExec, node: GraphNode, event: Event) = graph_change::set_executable_record;
                fn cuGraphEventWaitNodeGetEvent(node: GraphNode, event: Out<Event>) = graph_change::wait;
                fn cuGraphEventWaitNodeSetEvent(node: GraphNode, event: Event) = graph_change::set_wait;
                fn cuGraphExecEventWaitNodeSetEvent(exec: GraphExec, node: GraphNode, event: Event) = graph_change::set_executable_wait;
                fn cuGraphExecChildGraphNodeSetParams(exec: GraphExec, node: GraphNode, child: Graph) = graph_change::set_executable_child;
                fn cuGraphNodeSetParams(node: GraphNode, parameters: Source<NodeParameters>) = graph_change::set_any;
                fn cuGraphExecNodeSetParams(exec: GraphExec, node: GraphNode, parameters: Source<NodeParameters>) = graph_change::set_any_executable;
                fn cuGraphNodeSetEnabled(exec: GraphExec, node: GraphNode, enabled: c_uint) = graph_change::enable;
                fn cuGraphNodeGetEnabled(exec: GraphExec, node: GraphNode, enabled: Out<c_uint>) = graph_change::is_enabled;
                fn cuGraphNodeFindInClone(copy: Out<GraphNode>, node: GraphNode, clone: Graph) = graph_node::in_clone;
                fn cuGraphKernelNodeGetAttribute(node: GraphNode, attribute: c_uint, value: Out<AttributeValue>) = graph_change::kernel_attribute;
                fn cuGraphKernelNodeSetAttribute(node: GraphNode, attribute: c_uint, value: Source<AttributeValue>) = graph_change::set_kernel_attribute;
                fn cuGraphKernelNodeCopyAttributes(to: GraphNode, from: GraphNode) = graph_change::copy_kernel_attributes;
                fn cuGraphDebugDotPrint(graph: Graph, path: Text, flags: c_uint) = graph_node::describe;
                fn cuUserObjectCreate(object: Out<UserObject>, data: *mut c_void, destroy: HostFunction, count: c_uint, flags: c_uint) = user_object::create;
                fn cuUserObjectRetain(object: UserObject, count: c_uint) = user_object::retain;
                fn cuUserObjectRelease(object: UserObject, count: c_uint) = user_object::release;
                fn cuGraphRetainUserObject(graph: Graph, object: UserObject, count: c_uint, flags: c_uint) = user_object::give;
                fn cuGraphReleaseUserObject(graph: Graph, object: UserObject, count: c_uint) = user_object::take;

                fn cuEventCreate(event: Out<Event>, flags: c_uint) = stream::create_event;
                fn cuEventDestroy_v2(event: Event) = stream::destroy_event;
                fn cuEventRecord(event: Event, stream: Stream) = stream::record_event, ptsz;
                fn cuEventRecordWithFlags(event: Event, stream: Stream, flags: c_uint) = stream::record_event_with, ptsz;
                fn cuCtxRecordEvent(context: Context, event: Event) = stream::record_context;
                fn cuCtxWaitEvent(context: Context, event: Event) = stream::wait_in_context;
                fn cuEventSynchronize(event: Event) = stream::synchronize_event;
                fn cuEventQuery(event: Event) = stream::query_event;
                fn cuEventElapsedTime(milliseconds: Out<f32>, start: Event, end: Event) = stream::elapsed;
                fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Event, end: Event) = stream::elapsed;

                fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: DevicePointer) = interprocess::memory_handle;
                fn cuIpcOpenMemHandle_v2(address: Out<DevicePointer>, handle: IpcHandle, flags: c_uint) = interprocess::open_memory;
                fn cuIpcCloseMemHandle(address: DevicePointer) = interprocess::close_memory;
                fn cuIpcGetEventHandle(handle: Out<IpcHandle>, event: Event) = interprocess::event_handle;
                fn cuIpcOpenEventHandle(event: Out<Event>, handle: IpcHandle) = interprocess::open_event;

                fn cuMemAlloc_v2(address: Out<DevicePointer>, bytes: usize) = memory::allocate;
                fn cuMemAllocPitch_v2(address: Out<DevicePointer>, pitch: Out<usize>, width: usize, height: usize, element: c_uint) = memory::allocate_pitch;
                fn cuMemAllocAsync(address: Out<DevicePointer>, bytes: usize, stream: Stream) = memory::allocate_in, ptsz;
                fn cuMemAllocFromPoolAsync(address: Out<DevicePointer>, bytes: usize, pool: Pool, stream: Stream) = pool::allocate, ptsz;
                fn cuMemFree_v2(address: DevicePointer) = memory::free;
                fn cuMemFreeAsync(address: DevicePointer, stream: Stream) = memory::free_in, ptsz;
                fn cuMemGetAddressRange_v2(base: Out<DevicePointer>, bytes: Out<usize>, address: DevicePointer) = address::range;
                fn cuPointerGetAttribute(value: Out<u8>, attribute: c_uint, address: DevicePointer) = address::attribute;
                fn cuMemRangeGetAttribute(to: Out<u8>, room: usize, attribute: c_uint, address: DevicePointer, bytes: usize) = managed::attribute;
                fn cuMemRangeGetAttributes(to: Outs, rooms: Source<usize>, attributes: Source<c_uint>, count: usize, address: DevicePointer, bytes: usize) = managed::attributes;
                fn cuPointerGetAttributes(count: c_uint, attributes: Source<c_uint>, values: Outs, address: DevicePointer) = address::attributes;
                fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = memory::memory_info;
                fn cuMemAllocManaged(address: Out<DevicePointer>, bytes: usize, flags: c_uint) = managed::allocate;
                fn cuStreamAttachMemAsync(stream: Stream, address: DevicePointer, bytes: usize, flags: c_uint) = managed::attach, ptsz;
                fn cuMemPrefetchAsync(address: DevicePointer, bytes: usize, device: Device, stream: Stream) = managed::prefetch, ptsz;
                fn cuMemPrefetchAsync_v2(address: DevicePointer, bytes: usize, location: MemoryLocation, flags: c_uint, stream: Stream) = managed::prefetch_to, ptsz;
                fn cuMemAdvise(address: DevicePointer, bytes: usize, advice: c_uint, device: Device) = managed::advise;
                fn cuMemAdvise_v2(address: DevicePointer, bytes: usize, advice: c_uint, location: MemoryLocation) = managed::advise_at;
                fn cuMemHostAlloc(memory: Out<*mut c_void>, bytes: usize, flags: c_uint) = host::allocate;
                fn cuMemAllocHost_v2(memory: Out<*mut c_void>, bytes: usize) = host::allocate_plain;
                fn cuMemHostGetFlags(flags: Out<c_uint>, memory: *mut c_void) = host::flags_of;
                fn cuMemHostGetDevicePointer_v2(address: Out<DevicePointer>, memory: *mut c_void, flags: c_uint) = host::device_pointer;
                fn cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint) = host::register;
                fn cuMemHostUnregister(memory: *mut c_void) = host::unregister;
                fn cuMemFreeHost(memory: *mut c_void) = host::free;
                fn cuMemcpyHtoD_v2(to: DevicePointer, from: Source<u8>, bytes: usize) = memory::copy_from_host, ptds;
                fn cuMemcpyHtoDAsync_v2(to: DevicePointer, from: Source<u8>, bytes: usize, stream: Stream) = memory::copy_from_host_in, ptsz;
                fn cuMemcpyDtoH_v2(to: Out<u8>, from: DevicePointer, bytes: usize) = memory::copy_to_host, ptds;
                fn cuMemcpyDtoHAsync_v2(to: Out<u8>, from: DevicePointer, bytes: usize, stream: Stream) = memory::copy_to_host_in, ptsz;
                fn cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) = memory::copy, ptds;
                fn cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Stream) = memory::copy_in, ptsz;
                fn cuMemcpy(to: DevicePointer, from: DevicePointer, bytes: usize) = rows::copy, ptds;
                fn cuMemcpyAsync(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Stream) = rows::copy_in, ptsz;
                fn cuMemcpy2D_v2(copy: Source<Copy2D>) = rows::copy_2d, ptds;
                fn cuMemcpy2DUnaligned_v2(copy: Source<Copy2D>) = rows::copy_2d, ptds;
                fn cuMemcpy2DAsync_v2(copy: Source<Copy2D>, stream: Stream) = rows::copy_2d_in, ptsz;
                fn cuMemcpy3D_v2(copy: Source<Copy3D>) = rows::copy_3d, ptds;
                fn cuMemcpy3DAsync_v2(copy: Source<Copy3D>, stream: Stream) = rows::copy_3d_in, ptsz;
                fn cuMemcpy3DPeer(copy: Source<Copy3D>) = rows::copy_3d, ptds;
                fn cuMemcpy3DPeerAsync(copy: Source<Copy3D>, stream: Stream) = rows::copy_3d_in, ptsz;
                fn cuMemcpyPeer(to: DevicePointer, to_context: Context, from: DevicePointer, from_context: Context, bytes: usize) = memory::copy_peer_now, ptds;
                fn cuMemcpyPeerAsync(to: DevicePointer, to_context: Context, from: DevicePointer, from_context: Context, bytes: usize, stream: Stream) = memory::copy_peer, ptsz;
                fn cuMemcpyBatchAsync(to: Source<DevicePointer>, from: Source<DevicePointer>, sizes: Source<usize>, count: usize, attributes: Source<CopyAttributes>, starts: Source<usize>, attribute_count: usize, fails_at: Out<usize>, stream: Stream) = batch::copy, ptsz;
                fn cuMemcpy3DBatchAsync(count: usize, copies: Source<BatchCopy>, fails_at: Out<usize>, flags: c_ulonglong, stream: Stream) = batch::copy_3d, ptsz;
                fn cuMemsetD8_v2(at: DevicePointer, value: u8, count: usize) = memory::set_8, ptds;
                fn cuMemsetD8Async(at: DevicePointer, value: u8, count: usize, stream: Stream) = memory::set_8_in, ptsz;
                fn cuMemsetD16_v2(at: DevicePointer, value: u16, count: usize) = memory::set_16, ptds;
                fn cuMemsetD16Async(at: DevicePointer, value: u16, count: usize, stream: Stream) = memory::set_16_in, ptsz;
                fn cuMemsetD32_v2(at: DevicePointer, value: c_uint, count: usize) = memory::set_32, ptds;
                fn cuMemsetD32Async(at: DevicePointer, value: c_uint, count: usize, stream: Stream) = memory::set_32_in, ptsz;
                fn cuMemsetD2D8_v2(at: DevicePointer, pitch: usize, value: u8, width: usize, height: usize) = memory::set_2d_8, ptds;
                fn cuMemsetD2D8Async(at: DevicePointer, pitch: usize, value: u8, width: usize, height: usize, stream: Stream) = memory::set_2d_8_in, ptsz;
                fn cuMemsetD2D16_v2(at: DevicePointer, pitch: usize, value: u16, width: usize, height: usize) = memory::set_2d_16, ptds;
                fn cuMemsetD2D16Async(at: DevicePointer, pitch: usize, value: u16, width: usize, height: usize, stream: Stream) = memory::set_2d_16_in, ptsz;
                fn cuMemsetD2D32_v2(at: DevicePointer, pitch: usize, value: c_uint, width: usize, height: usize) = memory::set_2d_32, ptds;
                fn cuMemsetD2D32Async(at: DevicePointer, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) = memory::set_2d_32_in, ptsz;

                fn cuDeviceGetDefaultMemPool(pool: Out<Pool>, device: Device) = pool::default_of;
                fn cuDeviceGetMemPool(pool: Out<Pool>, device: Device) = pool::current_of;
                fn cuDeviceSetMemPool(device: Device, pool: Pool) = pool::set_current;
                fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: Source<AllocationProperties>, option: c_uint) = virtual_memory::granularity;
                fn cuMemAddressReserve(address: Out<DevicePointer>, bytes: usize, alignment: usize, hint: DevicePointer, flags: c_ulonglong) = virtual_memory::reserve;
                fn cuMemAddressFree(address: DevicePointer, bytes: usize) = virtual_memory::free;
                fn cuMemCreate(memory: Out<c_ulonglong>, bytes: usize, properties: Source<AllocationProperties>, flags: c_ulonglong) = virtual_memory::create;
                fn cuMemRelease(memory: c_ulonglong) = virtual_memory::release;
                fn cuMemGetAllocationPropertiesFromHandle(properties: Out<AllocationProperties>, memory: c_ulonglong) = virtual_memory::properties;
                fn cuMemRetainAllocationHandle(memory: Out<c_ulonglong>, address: *mut c_void) = virtual_memory::retain;
                fn cuMemMap(address: DevicePointer, bytes: usize, offset: usize, memory: c_ulonglong, flags: c_ulonglong) = virtual_memory::map;
                fn cuMemUnmap(address: DevicePointer, bytes: usize) = virtual_memory::unmap;
                fn cuMemSetAccess(address: DevicePointer, bytes: usize, accesses: Source<AccessDescription>, count: usize) = virtual_memory::set_access;
                fn cuMemGetAccess(flags: Out<c_ulonglong>, location: Source<MemoryLocation>, address: DevicePointer) = virtual_memory::access;
                fn cuMemPoolCreate(pool: Out<Pool>, properties: Source<PoolProperties>) = pool::create;
                fn cuMemPoolDestroy(pool: Pool) = pool::destroy;
                fn cuMemPoolTrimTo(pool: Pool, keep: usize) = pool::trim;
                fn cuMemPoolSetAccess(pool: Pool, accesses: Source<AccessDescription>, count: usize) = virtual_memory::set_pool_access;
                fn cuMemPoolGetAccess(flags: Out<c_uint>, pool: Pool, location: Source<MemoryLocation>) = virtual_memory::pool_access;
                fn cuMemExportToShareableHandle(handle: Out<u8>, memory: c_ulonglong, kind: c_uint, flags: c_ulonglong) = shareable::export_memory;
                fn cuMemImportFromShareableHandle(memory: Out<c_ulonglong>, handle: *mut c_void, kind: c_uint) = shareable::import_memory;
                fn cuMemPoolExportToShareableHandle(handle: Out<u8>, pool: Pool, kind: c_uint, flags: c_ulonglong) = shareable::export_pool;
                fn cuMemPoolImportFromShareableHandle(pool: Out<Pool>, handle: *mut c_void, kind: c_uint, flags: c_ulonglong) = shareable::import_pool;
                fn cuMemPoolExportPointer(data: Out<IpcHandle>, address: DevicePointer) = shareable::export_pointer;
                fn cuMemPoolImportPointer(address: Out<DevicePointer>, pool: Pool, data: Source<IpcHandle>) = shareable::import_pointer;
                fn cuMemPoolGetAttribute(pool: Pool, attribute: c_uint, value: Out<u8>) = pool::attribute;
                fn cuMemPoolSetAttribute(pool: Pool, attribute: c_uint, value: Source<u8>) = pool::set_attribute;

                fn cuModuleLoad(module: Out<Module>, path: Text) = module::load_module_file;
                fn cuModuleLoadData(module: Out<Module>, image: Bytes) = module::load_module;
                fn cuModuleLoadDataEx(module: Out<Module>, image: Bytes, count: c_uint, options: Source<c_uint>, values: Out<OptionValue>) = module::load_module_with;
                fn cuModuleLoadFatBinary(module: Out<Module>, image: Bytes) = module::load_module;
                fn cuModuleUnload(module: Module) = module::unload_module;
                fn cuModuleGetFunction(function: Out<Function>, module: Module, name: Text) = module::function;
                fn cuModuleGetLoadingMode(mode: Out<c_uint>) = introspection::loading_mode;
                fn cuModuleGetFunctionCount(count: Out<c_uint>, module: Module) = introspection::functions_of_module;
                fn cuModuleEnumerateFunctions(functions: Out<Function>, number: c_uint, module: Module) = introspection::list_functions;
                fn cuModuleGetGlobal_v2(address: Out<DevicePointer>, bytes: Out<usize>, module: Module, name: Text) = function::global;
                fn cuLinkCreate_v2(count: c_uint, options: Source<c_uint>, values: Out<OptionValue>, state: Out<LinkState>) = link::create;
                fn cuLinkAddData_v2(state: LinkState, kind: c_uint, data: Bytes, size: usize, name: Text, count: c_uint, options: Source<c_uint>, values: Out<OptionValue>) = link::add_data;
                fn cuLinkAddFile_v2(state: LinkState, kind: c_uint, path: Text, count: c_uint, options: Source<c_uint>, values: Out<OptionValue>) = link::add_file;
                fn cuLinkComplete(state: LinkState, image: Out<OptionValue>, size: Out<usize>) = link::complete;
                fn cuLinkDestroy(state: LinkState) = link::destroy;
                fn cuLibraryLoadData(library: Out<Library>, image: Bytes, options: Source<c_uint>, values: Out<OptionValue>, count: c_uint, library_options: Source<c_uint>, library_values: Arguments, library_count: c_uint) = library::load;
                fn cuLibraryLoadFromFile(library: Out<Library>, path: Text, options: Source<c_uint>, values: Out<OptionValue>, count: c_uint, library_options: Source<c_uint>, library_values: Arguments, library_count: c_uint) = library::load_file;
                fn cuLibraryUnload(library: Library) = library::unload;
                fn cuLibraryGetKernel(kernel: Out<Kernel>, library: Library, name: Text) = library::kernel;
                fn cuLibraryGetModule(module: Out<Module>, library: Library) = library::module;
                fn cuLibraryGetGlobal(address: Out<DevicePointer>, bytes: Out<usize>, library: Library, name: Text) = library::global;
                fn cuLibraryGetManaged(address: Out<DevicePointer>, bytes: Out<usize>, library: Library, name: Text) = library::managed;
                fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Library) = introspection::kernels_of_library;
                fn cuLibraryEnumerateKernels(kernels: Out<Kernel>, number: c_uint, library: Library) = introspection::list_kernels;
                fn cuKernelGetName(name: Out<*const c_char>, kernel: Kernel) = introspection::name_of_kernel;
                fn cuKernelGetLibrary(library: Out<Library>, kernel: Kernel) = introspection::library_of_kernel;
                fn cuKernelGetParamInfo(kernel: Kernel, index: usize, offset: Out<usize>, size: Out<usize>) = introspection::parameter_of_kernel;
                fn cuKernelGetFunction(function: Out<Function>, kernel: Kernel) = library::function_of;
                fn cuKernelGetAttribute(value: Out<c_int>, attribute: c_int, kernel: Kernel, device: Device) = library::attribute;
                fn cuKernelSetAttribute(attribute: c_int, value: c_int, kernel: Kernel, device: Device) = library::set_attribute;
                fn cuKernelSetCacheConfig(kernel: Kernel, preference: c_uint, device: Device) = library::set_cache_preference;
                fn cuFuncGetModule(module: Out<Module>, function: Function) = introspection::module_of_function;
                fn cuFuncGetName(name: Out<*const c_char>, function: Function) = introspection::name_of_function;
                fn cuFuncGetParamInfo(function: Function, index: usize, offset: Out<usize>, size: Out<usize>) = introspection::parameter_of_function;
                fn cuFuncIsLoaded(state: Out<c_uint>, function: Function) = introspection::is_loaded;
                fn cuFuncLoad(function: Function) = introspection::load;
                fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Function) = function::attribute;
                fn cuFuncSetAttribute(function: Function, attribute: c_int, value: c_int) = function::set_attribute;
                fn cuFuncSetCacheConfig(function: Function, preference: c_uint) = function::set_cache_preference;
                fn cuFuncSetSharedMemConfig(function: Function, config: c_uint) = function::set_shared_memory_config;
                fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<c_int>, function: Function, block_size: c_int, dynamic: usize) = occupancy::blocks;
                fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<c_int>, function: Function, block_size: c_int, dynamic: usize, flags: c_uint) = occupancy::blocks_with_flags;
                fn cuOccupancyMaxPotentialBlockSize(grid: Out<c_int>, block: Out<c_int>, function: Function, to_shared: BlockToShared, dynamic: usize, limit: c_int) = occupancy::block_size;
                fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<c_int>, block: Out<c_int>, function: Function, to_shared: BlockToShared, dynamic: usize, limit: c_int, flags: c_uint) = occupancy::block_size_with_flags;
                fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Function, blocks: c_int, block_size: c_int) = occupancy::dynamic_shared;
                fn cuOccupancyMaxPotentialClusterSize(size: Out<c_int>, function: Function, launch: Source<LaunchConfig>) = occupancy::cluster_size;
                fn cuOccupancyMaxActiveClusters(clusters: Out<c_int>, function: Function, launch: Source<LaunchConfig>) = occupancy::clusters;
                fn cuLaunchKernel(function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: Arguments, extra: *const c_void) = module::launch, ptsz;
                fn cuLaunchKernelEx(launch: Source<LaunchConfig>, function: Function, parameters: Arguments, extra: *const c_void) = module::launch_with_attributes, ptsz;
                fn cuLaunchCooperativeKernel(function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: Arguments) = module::launch_cooperative, ptsz;
            }
            older cuda {
                fn cuCtxCreate(context: Out<Context>, flags: c_uint, device: Device) = context::create_plain;
                fn cuDevicePrimaryCtxReset(device: Device) = context::reset_primary;
                fn cuDevicePrimaryCtxSetFlags(device: Device, flags: c_uint) = context::set_primary_flags;
                fn cuGetProcAddress(symbol: Text, address: Out<*mut c_void>, version: c_int, flags: c_ulonglong) = symbols::address;
                fn cuCtxDestroy(context: Context) = context::destroy;
                fn cuCtxPopCurrent(context: Out<Context>) = context::pop;
                fn cuCtxPushCurrent(context: Context) = context::push;
                fn cuDevicePrimaryCtxRelease(device: Device) = context::release_primary;
                fn cuEventDestroy(event: Event) = stream::destroy_event;
                fn cuMemHostRegister(memory: *mut c_void, bytes: usize, flags: c_uint) = host::register;
                fn cuLinkCreate(count: c_uint, options: Source<c_uint>, values: Out<OptionValue>, state: Out<LinkState>) = link::create;
                fn cuLinkAddData(state: LinkState, kind: c_uint, data: Bytes, size: usize, name: Text, count: c_uint, options: Source<c_uint>, values: Out<OptionValue>) = link::add_data;
                fn cuLinkAddFile(state: LinkState, kind: c_uint, path: Text, count: c_uint, options: Source<c_uint>, values: Out<OptionValue>) = link::add_file;
                fn cuStreamDestroy(stream: Stream) = stream::destroy_stream;
                fn cuStreamBeginCapture(stream: Stream) = capture::begin_old, ptsz;
                fn cuStreamGetCaptureInfo(stream: Stream, status: Out<c_uint>, id: Out<c_ulonglong>) = capture::info_old, ptsz;
                fn cuGraphInstantiate(exec: Out<GraphExec>, graph: Graph, node: Out<GraphNode>, log: Out<c_char>, size: usize) = graph::instantiate_old;
                fn cuGraphInstantiate_v2(exec: Out<GraphExec>, graph: Graph, node: Out<GraphNode>, log: Out<c_char>, size: usize) = graph::instantiate_old;
                fn cuGraphExecUpdate(exec: GraphExec, graph: Graph, node: Out<GraphNode>, result: Out<c_uint>) = graph_node::update_old;
                fn cuGraphAddKernelNode(node: Out<GraphNode>, graph: Graph, after: Source<GraphNode>, count: usize, parameters: Source<OldKernelParameters>) = graph_change::add_old_kernel;
                fn cuGraphKernelNodeGetParams(node: GraphNode, parameters: Out<OldKernelParameters>) = graph_change::old_kernel;
                fn cuGraphKernelNodeSetParams(node: GraphNode, parameters: Source<OldKernelParameters>) = graph_change::set_old_kernel;
                fn cuGraphExecKernelNodeSetParams(exec: GraphExec, node: GraphNode, parameters: Source<OldKernelParameters>) = graph_change::set_old_executable_kernel;
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
                fn ncclCommGetUniqueId(comm: Communicator, id: Out<Id>) = nccl::unique_id_of;
                fn ncclCommGrow(comm: Communicator, world_size: c_int, id: Source<Id>, rank: c_int, to: Out<Communicator>, config: Bytes) = nccl::grow;
                fn ncclCommShrink(comm: Communicator, excluded: Source<c_int>, count: c_int, to: Out<Communicator>, config: Bytes, flags: c_int) = nccl::shrink;
                fn ncclCommRevoke(comm: Communicator, flags: c_int) = nccl::revoke;
                fn ncclCommSuspend(comm: Communicator, flags: c_int) = nccl::suspend;
                fn ncclCommResume(comm: Communicator) = nccl::resume;
                fn ncclCommWindowRegister(comm: Communicator, buffer: DevicePointer, bytes: usize, to: Out<Window>, flags: c_int) = nccl::register_window;
                fn ncclCommWindowDeregister(comm: Communicator, window: Window) = nccl::deregister_window;
                fn ncclWinGetUserPtr(comm: Communicator, window: Window, to: Out<*mut c_void>) = nccl::window_pointer;
                fn ncclCommMemStats(comm: Communicator, statistic: c_uint, to: Out<c_ulonglong>) = nccl::memory_statistic;
                fn ncclMemAlloc(to: Out<DevicePointer>, bytes: usize) = nccl::allocate;
                fn ncclMemFree(address: DevicePointer) = nccl::free;
                fn ncclRedOpCreatePreMulSum(operator: Out<c_uint>, scalar: Bytes, data_type: c_uint, residence: c_uint, comm: Communicator) = nccl::create_operator;
                fn ncclRedOpDestroy(operator: c_uint, comm: Communicator) = nccl::destroy_operator;
                fn ncclGroupStart() = nccl::group_start;
                fn ncclGroupEnd() = nccl::group_end;
                fn ncclGroupSimulateEnd(info: Out<SimulationInfo>) = nccl::simulate_group_end;
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
                fn ncclPutSignal(buffer: DevicePointer, count: usize, data_type: c_uint, peer: c_int, window: Window, offset: usize, signal: c_int, context: c_int, flags: c_uint, comm: Communicator, stream: Stream) = nccl::put_signal;
                fn ncclSignal(peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: Communicator, stream: Stream) = nccl::signal;
                fn ncclWaitSignal(count: c_int, descriptions: Source<WaitDescription>, comm: Communicator, stream: Stream) = nccl::wait_signal;
                fn ncclRecv(buffer: DevicePointer, count: usize, data_type: c_uint, peer: c_int, comm: Communicator, stream: Stream) = nccl::receive;
                fn ncclParamBind(to: Out<ParameterHandle>, key: Text) = nccl::bind;
                fn ncclParamGetI8(parameter: ParameterHandle, to: Out<i8>) = nccl::parameter_number;
                fn ncclParamGetU8(parameter: ParameterHandle, to: Out<u8>) = nccl::parameter_number;
                fn ncclParamGetI16(parameter: ParameterHandle, to: Out<i16>) = nccl::parameter_number;
                fn ncclParamGetU16(parameter: ParameterHandle, to: Out<u16>) = nccl::parameter_number;
                fn ncclParamGetI32(parameter: ParameterHandle, to: Out<c_int>) = nccl::parameter_number;
                fn ncclParamGetI64(parameter: ParameterHandle, to: Out<i64>) = nccl::parameter_number;
                fn ncclParamGetU32(parameter: ParameterHandle, to: Out<c_uint>) = nccl::parameter_u32;
                fn ncclParamGetU64(parameter: ParameterHandle, to: Out<c_ulonglong>) = nccl::parameter_u64;
                fn ncclParamGetStr(parameter: ParameterHandle, to: Out<*const c_char>) = nccl::parameter_text;
                fn ncclParamGet(parameter: ParameterHandle, to: Out<u8>, room: c_int, len: Out<c_int>) = nccl::parameter_bytes;
                fn ncclParamGetParameter(key: Text, to: Out<*const c_char>, len: Out<c_int>) = nccl::parameter_value;
                fn ncclParamGetAllParameterKeys(to: Out<*mut *const c_char>, len: Out<c_int>) = nccl::parameter_keys;
            }
            unsupported cuda {
                cuArray3DCreate cuArray3DGetDescriptor cuArrayCreate cuArrayGetDescriptor
                cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties
                cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId
                cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessRestore
                cuCheckpointProcessUnlock cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
                cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxDetach
                cuCtxFromGreenCtx cuCtxGetDevResource cuCtxGetExecAffinity cuCtxResetPersistingL2Cache
                cuDestroyExternalMemory cuDestroyExternalSemaphore cuDevResourceGenerateDesc
                cuDevSmResourceSplitByCount cuDeviceGetDevResource cuDeviceGetLuid
                cuDeviceGetNvSciSyncAttributes cuDeviceRegisterAsyncNotification cuDeviceTotalMem
                cuDeviceUnregisterAsyncNotification cuExternalMemoryGetMappedBuffer
                cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites cuFuncSetBlockShape
                cuFuncSetSharedSize cuGetExportTable cuGraphAddExternalSemaphoresSignalNode
                cuGraphAddExternalSemaphoresWaitNode cuGraphConditionalHandleCreate
                cuGraphExecExternalSemaphoresSignalNodeSetParams
                cuGraphExecExternalSemaphoresWaitNodeSetParams
                cuGraphExternalSemaphoresSignalNodeGetParams
                cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
                cuGraphExternalSemaphoresWaitNodeSetParams cuGraphicsMapResources
                cuGraphicsMapResources_ptsz cuGraphicsResourceGetMappedMipmappedArray
                cuGraphicsResourceGetMappedPointer cuGraphicsResourceGetMappedPointer_v2
                cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2
                cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources
                cuGraphicsUnmapResources_ptsz cuGraphicsUnregisterResource cuGreenCtxCreate
                cuGreenCtxDestroy cuGreenCtxGetDevResource cuGreenCtxRecordEvent cuGreenCtxStreamCreate
                cuGreenCtxWaitEvent cuImportExternalMemory cuImportExternalSemaphore cuIpcOpenMemHandle
                cuLaunch cuLaunchCooperativeKernelMultiDevice cuLaunchGrid cuLaunchGridAsync
                cuLibraryGetUnifiedFunction cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory
                cuLogsRegisterCallback cuLogsUnregisterCallback cuMemAlloc cuMemAllocHost
                cuMemAllocPitch cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz cuMemFree
                cuMemGetAddressRange cuMemGetHandleForAddressRange cuMemGetInfo
                cuMemHostGetDevicePointer cuMemMapArrayAsync cuMemMapArrayAsync_ptsz cuMemcpy2D
                cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA cuMemcpyAtoD
                cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH
                cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD cuMemcpyHtoDAsync
                cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8
                cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties
                cuModuleGetGlobal cuModuleGetSurfRef cuModuleGetTexRef cuMulticastAddDevice
                cuMulticastBindAddr cuMulticastBindMem cuMulticastCreate cuMulticastGetGranularity
                cuMulticastUnbind cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv
                cuPointerSetAttribute cuProfilerInitialize cuSignalExternalSemaphoresAsync
                cuSignalExternalSemaphoresAsync_ptsz cuStreamBatchMemOp cuStreamBatchMemOp_ptsz
                cuStreamGetGreenCtx cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue64
                cuStreamWaitValue64_ptsz cuStreamWriteValue32 cuStreamWriteValue32_ptsz
                cuStreamWriteValue64 cuStreamWriteValue64_ptsz cuSurfRefGetArray cuSurfRefSetArray
                cuTensorMapEncodeIm2colWide cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress
                cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor
                cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy
                cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp
                cuTexRefGetMipmappedArray cuTexRefSetAddress cuTexRefSetAddress2D
                cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode
                cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode
                cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode
                cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray
                cuWaitExternalSemaphoresAsync cuWaitExternalSemaphoresAsync_ptsz
            }
        }
    };
}
