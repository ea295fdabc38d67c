//! The layouts of C structures, as Rust sees them. `cargo xtask nvidia headers` compares them with `cuda.h` and `nccl.h`.

use std::mem::offset_of;

use crate::{
    AccessDescription, Affinity, AllocationNodeParameters, AllocationProperties, AttributeValue, BatchCopy,
    BatchNodeParameters, BatchOperation, Copy2D, Copy3D, CopyAttributes, CopyNodeParameters,
    CreateParameters, DeviceProperties, EdgeData, HostParameters, Id, InstantiateParameters, IpcHandle,
    KernelParameters, LaunchAttribute, LaunchConfig, MemoryLocation, NodeParameters, OldKernelParameters,
    PlaneDescription, PoolProperties, ResourceDescription, SetParameters, SimulationInfo, TensorMap,
    TextureDescription, UpdateInfo, ViewDescription, VolumeDescription, WaitDescription,
};

/// The layout of a C structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The structure's name in C.
    pub name: &'static str,
    /// The size in bytes.
    pub size: usize,
    /// The names of fields in C, with their offsets in bytes. A field of ours may be a part of a field in C, or several
    /// fields of the same type; such a field is listed once.
    pub fields: &'static [(&'static str, usize)],
}

macro_rules! layouts {
    ($($type:ident = $name:literal { $($field:ident = $c_field:literal),* })*) => {
        /// The layouts of all structures that programs pass to the exported functions, other than `ncclConfig_t`.
        pub const LAYOUTS: &[Layout] = &[$(Layout {
            name: $name,
            size: size_of::<$type>(),
            fields: &[$(($c_field, offset_of!($type, $field))),*],
        }),*];
    };
}

layouts! {
    Affinity = "CUexecAffinityParam_st" { kind = "type", multiprocessors = "param" }
    CreateParameters = "CUctxCreateParams_st" {
        affinities = "execAffinityParams", affinity_count = "numExecAffinityParams", graphics = "cigParams"
    }
    MemoryLocation = "CUmemLocation_st" { kind = "type", id = "id" }
    AllocationProperties = "CUmemAllocationProp_st" {
        allocation_type = "type", handle_types = "requestedHandleTypes", location = "location",
        handle_metadata = "win32HandleMetaData", compression = "allocFlags"
    }
    AccessDescription = "CUmemAccessDesc_st" { location = "location", flags = "flags" }
    LaunchConfig = "CUlaunchConfig_st" {
        grid = "gridDimX", block = "blockDimX", dynamic_shared = "sharedMemBytes", stream = "hStream",
        attributes = "attrs", attribute_count = "numAttrs"
    }
    LaunchAttribute = "CUlaunchAttribute_st" { number = "id", value = "value" }
    PoolProperties = "CUmemPoolProps_st" {
        allocation_type = "allocType", handle_types = "handleTypes", location_type = "location",
        security = "win32SecurityAttributes", max_size = "maxSize", usage = "usage", reserved = "reserved"
    }
    Copy2D = "CUDA_MEMCPY2D_st" { from = "srcXInBytes", to = "dstXInBytes", width = "WidthInBytes", height = "Height" }
    Copy3D = "CUDA_MEMCPY3D_st" {
        from = "srcXInBytes", to = "dstXInBytes", width = "WidthInBytes", height = "Height", depth = "Depth"
    }
    KernelParameters = "CUDA_KERNEL_NODE_PARAMS_v2_st" {
        function = "func", grid = "gridDimX", block = "blockDimX", dynamic_shared = "sharedMemBytes",
        parameters = "kernelParams", extra = "extra", kernel = "kern", context = "ctx"
    }
    SetParameters = "CUDA_MEMSET_NODE_PARAMS_st" {
        at = "dst", pitch = "pitch", value = "value", element = "elementSize", width = "width", height = "height"
    }
    NodeParameters = "CUgraphNodeParams_st" {
        kind = "type", reserved = "reserved0", more = "reserved2"
    }
    CopyNodeParameters = "CUDA_MEMCPY_NODE_PARAMS_st" {
        flags = "flags", reserved = "reserved", context = "copyCtx", copy = "copyParams"
    }
    AllocationNodeParameters = "CUDA_MEM_ALLOC_NODE_PARAMS_v1_st" {
        pool = "poolProps", accesses = "accessDescs", access_count = "accessDescCount", bytes = "bytesize",
        address = "dptr"
    }
    EdgeData = "CUgraphEdgeData_st" {
        from_port = "from_port", to_port = "to_port", kind = "type", reserved = "reserved"
    }
    OldKernelParameters = "CUDA_KERNEL_NODE_PARAMS_st" {
        function = "func", grid = "gridDimX", block = "blockDimX", dynamic_shared = "sharedMemBytes",
        parameters = "kernelParams", extra = "extra"
    }
    InstantiateParameters = "CUDA_GRAPH_INSTANTIATE_PARAMS_st" {
        flags = "flags", upload = "hUploadStream", node = "hErrNode_out", result = "result_out"
    }
    AttributeValue = "CUlaunchAttributeValue_union" {}
    BatchOperation = "CUstreamBatchMemOpParams_union" {}
    BatchNodeParameters = "CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st" {
        context = "ctx", count = "count", operations = "paramArray", flags = "flags"
    }
    CopyAttributes = "CUmemcpyAttributes_st" {
        order = "srcAccessOrder", from = "srcLocHint", to = "dstLocHint", flags = "flags"
    }
    BatchCopy = "CUDA_MEMCPY3D_BATCH_OP_st" {
        from = "src", to = "dst", extent = "extent", order = "srcAccessOrder", flags = "flags"
    }
    HostParameters = "CUDA_HOST_NODE_PARAMS_st" { function = "fn", data = "userData" }
    UpdateInfo = "CUgraphExecUpdateResultInfo_st" {
        result = "result", node = "errorNode", from = "errorFromNode"
    }
    DeviceProperties = "CUdevprop_st" {
        max_threads_per_block = "maxThreadsPerBlock", max_block = "maxThreadsDim", max_grid = "maxGridSize",
        shared_per_block = "sharedMemPerBlock", constant_memory = "totalConstantMemory", warp = "SIMDWidth",
        max_pitch = "memPitch", registers_per_block = "regsPerBlock", clock_rate = "clockRate",
        texture_alignment = "textureAlign"
    }
    IpcHandle = "CUipcMemHandle_st" {}
    IpcHandle = "CUipcEventHandle_st" {}
    IpcHandle = "CUmemPoolPtrExportData_st" {}
    Id = "ncclUniqueId" {}
    TensorMap = "CUtensorMap_st" {}
    PlaneDescription = "CUDA_ARRAY_DESCRIPTOR_st" {
        width = "Width", height = "Height", format = "Format", channels = "NumChannels"
    }
    VolumeDescription = "CUDA_ARRAY3D_DESCRIPTOR_st" {
        width = "Width", height = "Height", depth = "Depth", format = "Format", channels = "NumChannels",
        flags = "Flags"
    }
    ResourceDescription = "CUDA_RESOURCE_DESC_st" { kind = "resType", fields = "res", flags = "flags" }
    TextureDescription = "CUDA_TEXTURE_DESC_st" {
        modes = "addressMode", filter = "filterMode", flags = "flags", anisotropy = "maxAnisotropy",
        level_filter = "mipmapFilterMode", level_bias = "mipmapLevelBias", least_level = "minMipmapLevelClamp",
        most_level = "maxMipmapLevelClamp", border = "borderColor", reserved = "reserved"
    }
    ViewDescription = "CUDA_RESOURCE_VIEW_DESC_st" {
        format = "format", width = "width", height = "height", depth = "depth", first_level = "firstMipmapLevel",
        last_level = "lastMipmapLevel", first_layer = "firstLayer", last_layer = "lastLayer", reserved = "reserved"
    }
    WaitDescription = "ncclWaitSignalDesc_t" {
        count = "opCnt", peer = "peer", signal = "sigIdx", context = "ctx"
    }
    SimulationInfo = "ncclSimInfo_v22200" {
        size = "size", magic = "magic", version = "version", time = "estimatedTime"
    }
}
