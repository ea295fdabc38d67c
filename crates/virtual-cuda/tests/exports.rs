//! Compares the exported functions with cudarc's declarations: names, and the number, sizes, and types of the
//! parameters.

use std::any::type_name;
use std::ffi::c_char;

/// A C function's signature: the size in bytes and type name of each parameter, and the type name of the result.
trait Signature {
    fn sizes(&self) -> Vec<usize>;
    fn types(&self) -> Vec<&'static str>;
    fn result(&self) -> &'static str;
}

macro_rules! signature {
    ($($parameter:ident)*) => {
        signature!(unsafe fn($($parameter),*) -> R, $($parameter)*);
        signature!(unsafe extern "C" fn($($parameter),*) -> R, $($parameter)*);
    };
    ($function:ty, $($parameter:ident)*) => {
        impl<R, $($parameter),*> Signature for $function {
            fn sizes(&self) -> Vec<usize> {
                vec![$(size_of::<$parameter>()),*]
            }

            fn types(&self) -> Vec<&'static str> {
                vec![$(type_name::<$parameter>()),*]
            }

            fn result(&self) -> &'static str {
                type_name::<R>()
            }
        }
    };
}

signature!();
signature!(A);
signature!(A B);
signature!(A B C);
signature!(A B C D);
signature!(A B C D E);
signature!(A B C D E F);
signature!(A B C D E F G);
signature!(A B C D E F G H);
signature!(A B C D E F G H I);
signature!(A B C D E F G H I J);
signature!(A B C D E F G H I J K);
signature!(A B C D E F G H I J K L);
signature!(A B C D E F G H I J K L M N O);

/// The names that cudarc may use for a type in the table of exports: C handles, structures, and enumerations.
const TYPES: &[(&str, &[&str])] = &[
    ("Device", &["i32"]),
    ("DevicePointer", &["u64", "*const c_void", "*mut c_void"]),
    ("Context", &["*mut CUctx_st"]),
    ("Stream", &["*mut CUstream_st"]),
    ("Event", &["*mut CUevent_st"]),
    ("Module", &["*mut CUmod_st"]),
    ("Function", &["*mut CUfunc_st"]),
    ("Graph", &["*mut CUgraph_st"]),
    ("GraphExec", &["*mut CUgraphExec_st"]),
    ("GraphNode", &["*mut CUgraphNode_st"]),
    ("KernelParameters", &["CUDA_KERNEL_NODE_PARAMS_v2_st"]),
    ("NodeParameters", &["CUgraphNodeParams_st"]),
    ("AllocationNodeParameters", &["CUDA_MEM_ALLOC_NODE_PARAMS_v1_st"]),
    ("InstantiateParameters", &["CUDA_GRAPH_INSTANTIATE_PARAMS_st"]),
    ("OldKernelParameters", &["CUDA_KERNEL_NODE_PARAMS_st"]),
    ("AttributeValue", &["CUlaunchAttributeValue_union"]),
    ("UserObject", &["*mut CUuserObject_st"]),
    ("GreenContext", &["*mut CUgreenCtx_st"]),
    ("BatchNodeParameters", &["CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st"]),
    ("BatchOperation", &["CUstreamBatchMemOpParams_union"]),
    ("CopyAttributes", &["CUmemcpyAttributes_st"]),
    ("BatchCopy", &["CUDA_MEMCPY3D_BATCH_OP_st"]),
    ("EdgeData", &["CUgraphEdgeData_st"]),
    ("SetParameters", &["CUDA_MEMSET_NODE_PARAMS_st"]),
    ("HostParameters", &["CUDA_HOST_NODE_PARAMS_st"]),
    ("UpdateInfo", &["CUgraphExecUpdateResultInfo_st"]),
    ("Pool", &["*mut CUmemPoolHandle_st"]),
    ("Communicator", &["*mut ncclComm"]),
    ("Id", &["ncclUniqueId"]),
    ("IpcHandle", &["CUipcMemHandle_st", "CUipcEventHandle_st", "CUmemPoolPtrExportData_st"]),
    ("ParameterHandle", &["*mut ncclParamHandle"]),
    ("Window", &["*mut ncclWindow_vidmem"]),
    ("SimulationInfo", &["ncclSimInfo_v22200"]),
    ("[u8;16]", &["CUuuid_st"]),
    ("MemoryLocation", &["CUmemLocation_st"]),
    ("AllocationProperties", &["CUmemAllocationProp_st"]),
    ("AccessDescription", &["CUmemAccessDesc_st"]),
    ("Affinity", &["CUexecAffinityParam_st"]),
    ("CreateParameters", &["CUctxCreateParams_st"]),
    ("DeviceProperties", &["CUdevprop_st"]),
    ("LinkState", &["*mut CUlinkState_st"]),
    ("OptionValue", &["*mut c_void"]),
    ("Library", &["*mut CUlib_st"]),
    ("Kernel", &["*mut CUkern_st"]),
    ("StreamCallback", &["Option<unsafe extern \"C\" fn(*mut CUstream_st, cudaError_enum, *mut c_void)>"]),
    ("Copy2D", &["CUDA_MEMCPY2D_st"]),
    ("Copy3D", &["CUDA_MEMCPY3D_st", "CUDA_MEMCPY3D_PEER_st"]),
    ("TensorMap", &["CUtensorMap_st"]),
    ("Array", &["*mut CUarray_st"]),
    ("MipmappedArray", &["*mut CUmipmappedArray_st"]),
    ("PlaneDescription", &["CUDA_ARRAY_DESCRIPTOR_st"]),
    ("VolumeDescription", &["CUDA_ARRAY3D_DESCRIPTOR_st"]),
    ("ResourceDescription", &["CUDA_RESOURCE_DESC_st"]),
    ("TextureDescription", &["CUDA_TEXTURE_DESC_st"]),
    ("ViewDescription", &["CUDA_RESOURCE_VIEW_DESC_st"]),
    ("WaitDescription", &["ncclWaitSignalDesc_t"]),
    ("Outs", &["*mut *mut c_void"]),
    ("LaunchConfig", &["CUlaunchConfig_st"]),
    ("PoolProperties", &["CUmemPoolProps_st"]),
    ("HostFunction", &["Option<unsafe extern \"C\" fn(*mut c_void)>"]),
    ("BlockToShared", &["Option<unsafe extern \"C\" fn(i32) -> usize>"]),
    ("Arguments", &["*mut *mut c_void"]),
    ("Text", &["*const c_char", "*const c_void"]),
    ("Bytes", &["*const c_void", "*mut c_void", "*mut ncclConfig_v22800"]),
    ("*mutc_void", &["*mut c_void"]),
    ("*constc_void", &["*mut *mut c_void"]),
    ("*constc_char", &["*const c_char"]),
    ("*mut*constc_char", &["*mut *const c_char"]),
    ("u8", &["u8", "c_void"]),
    // C's `int8_t` and `char` are the same type here.
    ("i8", &["i8", "c_char"]),
    ("i16", &["i16"]),
    ("i64", &["i64"]),
    ("u16", &["u16"]),
    ("f32", &["f32"]),
    ("usize", &["usize"]),
    ("c_char", &["c_char"]),
    ("c_ulonglong", &["u64"]),
    ("c_int", &["i32", "CUdevice_attribute_enum", "CUfunction_attribute_enum"]),
    (
        "c_uint",
        &[
            "u32",
            "CUfunc_cache_enum",
            "CUgraphNodeType_enum",
            "CUjit_option_enum",
            "CUdevice_P2PAttribute_enum",
            "CUlimit_enum",
            "CUlibraryOption_enum",
            "CUmoduleLoadingMode_enum",
            "CUfunctionLoadingState_enum",
            "CUjitInputType_enum",
            "CUpointer_attribute_enum",
            "CUsharedconfig_enum",
            "CUexecAffinityType_enum",
            "CUmemPool_attribute_enum",
            "CUmemAllocationGranularity_flags_enum",
            "CUmemAllocationHandleType_enum",
            "CUmemAccess_flags_enum",
            "CUmem_advise_enum",
            "CUmem_range_attribute_enum",
            "CUarray_format_enum",
            "CUgraphMem_attribute_enum",
            "CUlaunchAttributeID_enum",
            "CUtensorMapDataType_enum",
            "CUtensorMapInterleave_enum",
            "CUtensorMapSwizzle_enum",
            "CUtensorMapL2promotion_enum",
            "CUtensorMapFloatOOBfill_enum",
            "CUstreamCaptureMode_enum",
            "CUstreamCaptureStatus_enum",
            "CUdriverProcAddressQueryResult_enum",
            "ncclDataType_t",
            "ncclRedOp_t",
            "ncclResult_t",
            "ncclScalarResidence_t",
            "ncclCommMemStat_t",
        ],
    ),
];

/// Returns whether a type in the table matches cudarc's declaration.
fn agrees(ours: &str, theirs: &str) -> bool {
    let pointed_to = |prefix| ours.strip_prefix(prefix)?.strip_suffix('>');
    if let Some(ours) = pointed_to("Out<") {
        return theirs.strip_prefix("*mut ").is_some_and(|theirs| agrees(ours, theirs));
    }
    if let Some(ours) = pointed_to("Source<") {
        // C declares some of these pointers without `const`.
        let theirs = theirs.strip_prefix("*const ").or_else(|| theirs.strip_prefix("*mut "));
        return theirs.is_some_and(|theirs| agrees(ours, theirs));
    }
    TYPES.iter().any(|(name, meant)| *name == ours && meant.contains(&theirs))
}

/// Returns a type's name without its modules.
fn short(name: &str) -> String {
    let name = ["cudarc::driver::sys::", "cudarc::nccl::sys::", "core::ffi::", "core::option::"]
        .iter()
        .fold(name.to_owned(), |name, path| name.replace(path, ""));
    match name.rsplit_once(' ') {
        Some((pointer, last)) if last == type_name::<c_char>() => format!("{pointer} c_char"),
        _ => name,
    }
}

fn compare(name: &str, ours: &dyn Signature, types: &[&str], theirs: &dyn Signature) {
    assert_eq!(ours.sizes(), theirs.sizes(), "{name}");
    for (ours, theirs) in types.iter().zip(theirs.types()) {
        let (ours, theirs) = (ours.replace(' ', ""), short(theirs));
        assert!(agrees(&ours, &theirs), "{name}: the table says {ours}, but cudarc says {theirs}");
    }
}

macro_rules! compare_all {
    (
        cuda { $(fn $cuda:ident($($cuda_arg:ident: $cuda_type:ty),*) = $cuda_to:path $(, $own:ident)?;)* }
        older cuda { $($older:tt)* }
        nccl { $(fn $nccl:ident($($nccl_arg:ident: $nccl_type:ty),*) = $nccl_to:path;)* }
        unsupported cuda { $($no_cuda:ident)* }
    ) => {
        $(
            let ours = virtual_cuda::$cuda as unsafe extern "C" fn($(compare_all!(any $cuda_arg)),*) -> _;
            let theirs = cudarc::driver::sys::$cuda as unsafe fn($(compare_all!(any $cuda_arg)),*) -> _;
            compare(stringify!($cuda), &ours, &[$(stringify!($cuda_type)),*], &theirs);
            assert_eq!((ours.result(), short(theirs.result()).as_str()), ("u32", "cudaError_enum"));
        )*
        $(
            let ours = virtual_cuda::$nccl as unsafe extern "C" fn($(compare_all!(any $nccl_arg)),*) -> _;
            let theirs = cudarc::nccl::sys::$nccl as unsafe fn($(compare_all!(any $nccl_arg)),*) -> _;
            compare(stringify!($nccl), &ours, &[$(stringify!($nccl_type)),*], &theirs);
            assert_eq!((ours.result(), short(theirs.result()).as_str()), ("u32", "ncclResult_t"));
        )*
    };
    (any $name:ident) => { _ };
}

#[test]
fn every_function_has_the_signature_that_cudarc_declares() {
    virtual_cuda::exports!(compare_all);
}

macro_rules! call_unsupported {
    (
        cuda { $($cuda:tt)* }
        older cuda { $($older:tt)* }
        nccl { $($nccl:tt)* }
        unsupported cuda { $($no_cuda:ident)* }
    ) => {{
        $(assert_eq!(virtual_cuda::$no_cuda(), cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as u32);)*
    }};
}

#[test]
fn every_unsupported_function_returns_an_error() {
    // Before that, the error is that the driver is not initialized.
    // SAFETY: cuInit has no preconditions.
    assert_eq!(unsafe { virtual_cuda::cuInit(0) }, 0);
    virtual_cuda::exports!(call_unsupported);
}

#[test]
fn types_that_only_have_the_same_size_do_not_agree() {
    assert!(agrees("Out<Stream>", "*mut *mut CUstream_st"));
    assert!(!agrees("Out<Stream>", "*mut *mut CUevent_st"));
    assert!(!agrees("Stream", "*mut *mut CUstream_st"));
    assert!(!agrees("c_int", "u32"));
    assert!(!agrees("usize", "u64"));
}

#[test]
fn structures_are_laid_out_as_cudarc_s() {
    use cudarc::driver::sys::{
        CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
        CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUDA_RESOURCE_DESC,
        CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUctxCreateParams, CUdevprop, CUexecAffinityParam,
        CUgraphEdgeData, CUgraphExecUpdateResultInfo, CUgraphNodeParams, CUlaunchAttribute, CUlaunchConfig,
        CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemPoolProps,
    };
    assert_eq!(size_of::<virtual_cuda::MemoryLocation>(), size_of::<CUmemLocation>());
    assert_eq!(size_of::<virtual_cuda::PoolProperties>(), size_of::<CUmemPoolProps>());
    assert_eq!(size_of::<virtual_cuda::AllocationProperties>(), size_of::<CUmemAllocationProp>());
    assert_eq!(size_of::<virtual_cuda::AccessDescription>(), size_of::<CUmemAccessDesc>());
    assert_eq!(size_of::<virtual_cuda::Affinity>(), size_of::<CUexecAffinityParam>());
    assert_eq!(size_of::<virtual_cuda::CreateParameters>(), size_of::<CUctxCreateParams>());
    assert_eq!(size_of::<virtual_cuda::DeviceProperties>(), size_of::<CUdevprop>());
    assert_eq!(size_of::<virtual_cuda::PlaneDescription>(), size_of::<CUDA_ARRAY_DESCRIPTOR>());
    assert_eq!(size_of::<virtual_cuda::VolumeDescription>(), size_of::<CUDA_ARRAY3D_DESCRIPTOR>());
    assert_eq!(size_of::<virtual_cuda::ResourceDescription>(), size_of::<CUDA_RESOURCE_DESC>());
    assert_eq!(size_of::<virtual_cuda::TextureDescription>(), size_of::<CUDA_TEXTURE_DESC>());
    assert_eq!(size_of::<virtual_cuda::ViewDescription>(), size_of::<CUDA_RESOURCE_VIEW_DESC>());
    assert_eq!(size_of::<virtual_cuda::Copy2D>(), size_of::<CUDA_MEMCPY2D>());
    assert_eq!(size_of::<virtual_cuda::Copy3D>(), size_of::<CUDA_MEMCPY3D>());
    assert_eq!(size_of::<virtual_cuda::KernelParameters>(), size_of::<CUDA_KERNEL_NODE_PARAMS>());
    assert_eq!(size_of::<virtual_cuda::NodeParameters>(), size_of::<CUgraphNodeParams>());
    assert_eq!(size_of::<virtual_cuda::CopyNodeParameters>(), size_of::<CUDA_MEMCPY_NODE_PARAMS>());
    assert_eq!(size_of::<virtual_cuda::EdgeData>(), size_of::<CUgraphEdgeData>());
    assert_eq!(size_of::<virtual_cuda::SetParameters>(), size_of::<CUDA_MEMSET_NODE_PARAMS>());
    assert_eq!(size_of::<virtual_cuda::HostParameters>(), size_of::<CUDA_HOST_NODE_PARAMS>());
    assert_eq!(size_of::<virtual_cuda::UpdateInfo>(), size_of::<CUgraphExecUpdateResultInfo>());
    assert_eq!(size_of::<virtual_cuda::LaunchConfig>(), size_of::<CUlaunchConfig>());
    assert_eq!(size_of::<virtual_cuda::LaunchAttribute>(), size_of::<CUlaunchAttribute>());
}

#[test]
fn no_symbol_is_listed_twice() {
    let mut names: Vec<_> = virtual_cuda::EXPORTS.iter().map(|export| export.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(virtual_cuda::EXPORTS.iter().any(|export| export.parameters.is_none()));
}

#[test]
fn the_device_attributes_have_cudarc_s_numbers() {
    use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
    let attribute = |attribute: Attribute| virtual_gpu::device::attribute(attribute as i32, 2).unwrap();
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z), 64);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y), 65_535);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), 3);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 227 << 10);
    assert_eq!(virtual_gpu::device::attribute(999, 0), None);
}
