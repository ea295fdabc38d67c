//! Result codes of the driver and of NCCL, and errors that carry a sentence beside the code.

use std::sync::Arc;

/// Declares a result code's variants with their C values, C names and documented meaning.
macro_rules! status {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $value:literal, $c_name:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $(#[doc = concat!("`", $c_name, "`: ", $meaning, ".")] $variant = $value,)*
        }

        impl $name {
            /// The code's name in the C header.
            pub fn c_name(self) -> &'static str {
                match self { $(Self::$variant => $c_name,)* }
            }

            /// What the code means, in a few words.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }

            /// The code with this C value.
            pub fn from_value(value: u32) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

status! {
    /// `CUresult`: what a driver function returns.
    CudaStatus {
        Success = 0, "CUDA_SUCCESS", "no error";
        InvalidValue = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
        OutOfMemory = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
        NotInitialized = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
        Deinitialized = 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down";
        NoDevice = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
        InvalidDevice = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
        InvalidImage = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
        InvalidContext = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
        NoBinaryForGpu = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device";
        UnsupportedLimit = 215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture";
        PeerAccessUnsupported = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices";
        InvalidPtx = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
        UnsupportedExecAffinity = 224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "execution affinity type is not supported on this architecture";
        InvalidSource = 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid";
        FileNotFound = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
        OperatingSystem = 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS";
        InvalidHandle = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
        IllegalState = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
        NotFound = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
        NotReady = 600, "CUDA_ERROR_NOT_READY", "device not ready";
        IllegalAddress = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
        LaunchOutOfResources = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
        LaunchTimeout = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
        PeerAccessNotEnabled = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled";
        ContextIsDestroyed = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
        Assert = 710, "CUDA_ERROR_ASSERT", "device-side assert triggered";
        HardwareStackError = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error";
        IllegalInstruction = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered";
        MisalignedAddress = 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
        LaunchFailed = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
        CooperativeLaunchTooLarge = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch";
        NotPermitted = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
        NotSupported = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
        StreamCaptureUnsupported = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
        StreamCaptureInvalidated = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
        StreamCaptureMerge = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
        StreamCaptureUnmatched = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
        StreamCaptureUnjoined = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
        StreamCaptureIsolation = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
        StreamCaptureImplicit = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
        CapturedEvent = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
        StreamCaptureWrongThread = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
        InvalidClusterSize = 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "Invalid cluster size";
        Unknown = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
    }
}

status! {
    /// `ncclResult_t`: what an NCCL function returns.
    NcclStatus {
        Success = 0, "ncclSuccess", "no error";
        UnhandledCudaError = 1, "ncclUnhandledCudaError", "unhandled cuda error";
        SystemError = 2, "ncclSystemError", "unhandled system error";
        InternalError = 3, "ncclInternalError", "internal error";
        InvalidArgument = 4, "ncclInvalidArgument", "invalid argument";
        InvalidUsage = 5, "ncclInvalidUsage", "invalid usage";
        RemoteError = 6, "ncclRemoteError", "remote process exited or there was a network error";
        InProgress = 7, "ncclInProgress", "NCCL operation in progress";
        Timeout = 8, "ncclTimeout", "operation timed out";
    }
}

/// An error code with a sentence that says what was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error<S> {
    /// What the C function returns.
    pub status: S,
    /// What was wrong, or empty where the code's own meaning says it all.
    pub message: Arc<str>,
}

impl<S> Error<S> {
    /// An error with its sentence.
    pub fn new(status: S, message: impl Into<Arc<str>>) -> Self {
        Self { status, message: message.into() }
    }
}

impl<S> From<S> for Error<S> {
    fn from(status: S) -> Self {
        Self { status, message: "".into() }
    }
}

/// What a driver call comes to.
pub type CudaResult<T> = Result<T, Error<CudaStatus>>;

/// What an NCCL call comes to.
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
