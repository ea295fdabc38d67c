//! The driver's and NCCL's result codes, and errors that pair a code with an explanation.

use std::fmt;
use std::sync::Arc;

/// Declares a result code's variants with their C values, C names, and documented meanings.
macro_rules! status {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $value:literal, $c_name:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $(#[doc = concat!("`", $c_name, "`: ", $meaning, ".")] $variant = $value,)*
        }

        impl $name {
            /// Returns the code's name in the C header.
            pub fn c_name(self) -> &'static str {
                match self { $(Self::$variant => $c_name,)* }
            }

            /// Returns what the code means, in a few words.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }

            /// Returns the code with this C value.
            pub fn from_value(value: u32) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

status! {
    /// `CUresult`: what a driver function returns, with NVIDIA's texts and their spelling.
    CudaStatus {
        Success = 0, "CUDA_SUCCESS", "no error";
        InvalidValue = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
        OutOfMemory = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
        NotInitialized = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
        Deinitialized = 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down";
        ProfilerDisabled = 5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled while using external profiling tool";
        ProfilerNotInitialized = 6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized: call cudaProfilerInitialize()";
        ProfilerAlreadyStarted = 7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started";
        ProfilerAlreadyStopped = 8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped";
        StubLibrary = 34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library";
        DeviceUnavailable = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable";
        NoDevice = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
        InvalidDevice = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
        DeviceNotLicensed = 102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device doesn't have valid Grid license";
        InvalidImage = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
        InvalidContext = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
        ContextAlreadyCurrent = 202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current";
        MapFailed = 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed";
        UnmapFailed = 206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed";
        ArrayIsMapped = 207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped";
        AlreadyMapped = 208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped";
        NoBinaryForGpu = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
        AlreadyAcquired = 210, "CUDA_ERROR_ALREADY_ACQUIRED", "resource already acquired";
        NotMapped = 211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped";
        NotMappedAsArray = 212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "resource not mapped as array";
        NotMappedAsPointer = 213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "resource not mapped as pointer";
        EccUncorrectable = 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered";
        UnsupportedLimit = 215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture";
        ContextAlreadyInUse = 216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "exclusive-thread device already in use by a different thread";
        PeerAccessUnsupported = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices";
        InvalidPtx = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
        InvalidGraphicsContext = 219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context";
        NvlinkUncorrectable = 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution";
        JitCompilerNotFound = 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found";
        UnsupportedPtxVersion = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.";
        JitCompilationDisabled = 223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled";
        UnsupportedExecAffinity = 224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the provided execution affinity is not supported";
        UnsupportedDevsideSync = 225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "the provided PTX contains unsupported call to cudaDeviceSynchronize";
        Contained = 226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error";
        InvalidSource = 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid";
        FileNotFound = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
        SharedObjectSymbolNotFound = 302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found";
        SharedObjectInitFailed = 303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed";
        OperatingSystem = 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS";
        InvalidHandle = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
        IllegalState = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
        LossyQuery = 402, "CUDA_ERROR_LOSSY_QUERY", "attempted introspection would be semantically lossy";
        NotFound = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
        NotReady = 600, "CUDA_ERROR_NOT_READY", "device not ready";
        IllegalAddress = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
        LaunchOutOfResources = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
        LaunchTimeout = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
        LaunchIncompatibleTexturing = 703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch uses incompatible texturing mode";
        PeerAccessAlreadyEnabled = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled";
        PeerAccessNotEnabled = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled";
        PrimaryContextActive = 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process";
        ContextIsDestroyed = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
        Assert = 710, "CUDA_ERROR_ASSERT", "device-side assert triggered";
        TooManyPeers = 711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted";
        HostMemoryAlreadyRegistered = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
        HostMemoryNotRegistered = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
        HardwareStackError = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error";
        IllegalInstruction = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered";
        MisalignedAddress = 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
        InvalidAddressSpace = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space";
        InvalidPc = 718, "CUDA_ERROR_INVALID_PC", "invalid program counter";
        LaunchFailed = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
        CooperativeLaunchTooLarge = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch";
        TensorMemoryLeak = 721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely freed";
        NotPermitted = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
        NotSupported = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
        SystemNotReady = 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized";
        SystemDriverMismatch = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination";
        CompatNotSupportedOnDevice = 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW";
        MpsConnectionFailed = 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server";
        MpsRpcFailure = 806, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed";
        MpsServerNotReady = 807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests";
        MpsMaxClientsReached = 808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the hardware resources required to create MPS client have been exhausted";
        MpsMaxConnectionsReached = 809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the hardware resources required to support device connections have been exhausted";
        MpsClientTerminated = 810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server";
        CdpNotSupported = 811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it";
        CdpVersionMismatch = 812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "unsupported interaction between different versions of CUDA Dynamic Parallelism";
        StreamCaptureUnsupported = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
        StreamCaptureInvalidated = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
        StreamCaptureMerge = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
        StreamCaptureUnmatched = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
        StreamCaptureUnjoined = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
        StreamCaptureIsolation = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
        StreamCaptureImplicit = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
        CapturedEvent = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
        StreamCaptureWrongThread = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
        Timeout = 909, "CUDA_ERROR_TIMEOUT", "wait operation timed out";
        GraphExecUpdateFailure = 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
        ExternalDevice = 911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occured in external entity outside of CUDA";
        InvalidClusterSize = 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration";
        FunctionNotLoaded = 913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "the function handle is not loaded when calling an API that requires a loaded function";
        InvalidResourceType = 914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "one or more resources passed in are not valid resource types for the operation";
        InvalidResourceConfiguration = 915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "one or more resources are insufficient or non-applicable for the operation";
        KeyRotation = 916, "CUDA_ERROR_KEY_ROTATION", "an error happened during the key rotation sequence";
        Unknown = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
    }
}

status! {
    /// `ncclResult_t`: what an NCCL function returns, with the texts of NCCL 2.30.7.
    NcclStatus {
        Success = 0, "ncclSuccess", "no error";
        UnhandledCudaError = 1, "ncclUnhandledCudaError", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        SystemError = 2, "ncclSystemError", "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        InternalError = 3, "ncclInternalError", "internal error - please report this issue to the NCCL developers";
        InvalidArgument = 4, "ncclInvalidArgument", "invalid argument (run with NCCL_DEBUG=WARN for details)";
        InvalidUsage = 5, "ncclInvalidUsage", "invalid usage (run with NCCL_DEBUG=WARN for details)";
        RemoteError = 6, "ncclRemoteError", "remote process exited or there was a network error";
        InProgress = 7, "ncclInProgress", "NCCL operation in progress";
        Timeout = 8, "ncclTimeout", "timeout";
    }
}

/// An error code, with a sentence that describes the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error<S> {
    /// The code that the C function returns.
    pub status: S,
    /// A description of the problem; empty if the code's meaning is enough.
    pub message: Arc<str>,
}

impl<S> Error<S> {
    /// Creates an error from a code and a sentence.
    pub fn new(status: S, message: impl Into<Arc<str>>) -> Self {
        Self { status, message: message.into() }
    }
}

impl<S> From<S> for Error<S> {
    fn from(status: S) -> Self {
        Self { status, message: "".into() }
    }
}

/// Returns `CUDA_ERROR_INVALID_VALUE` with a sentence.
pub fn invalid(message: impl Into<Arc<str>>) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, message)
}

/// Returns `CUDA_ERROR_NOT_SUPPORTED` for something that only the virtual GPU lacks.
pub fn unsupported(what: impl fmt::Display) -> Error<CudaStatus> {
    Error::new(CudaStatus::NotSupported, format!("virtual GPU: {what} is not supported"))
}

/// Converts a CUDA error from the engine into the error that an NCCL call returns.
impl From<Error<CudaStatus>> for Error<NcclStatus> {
    fn from(error: Error<CudaStatus>) -> Self {
        let message = match error.message.is_empty() {
            true => format!("{} ({})", error.status.c_name(), error.status.meaning()).into(),
            false => error.message,
        };
        Self { status: NcclStatus::UnhandledCudaError, message }
    }
}

/// The result of a driver call.
pub type CudaResult<T> = Result<T, Error<CudaStatus>>;

/// The result of an NCCL call.
pub type NcclResult<T> = Result<T, Error<NcclStatus>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_keeps_its_c_value_and_name() {
        assert_eq!(CudaStatus::IllegalAddress as u32, 700);
        assert_eq!(CudaStatus::from_value(700), Some(CudaStatus::IllegalAddress));
        assert_eq!(CudaStatus::from_value(12_345), None);
        assert_eq!(NcclStatus::InvalidUsage.c_name(), "ncclInvalidUsage");
    }
}
