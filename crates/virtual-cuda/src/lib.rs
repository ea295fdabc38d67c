//! The FFI layer: `libcuda.so`, with the `cu*` functions that cudarc calls, as well as the `nccl*` functions.
//!
//! [`exports!`] is the single table of exported functions. Each function converts C arguments to Rust, calls the engine or
//! NCCL, and converts what that returns to a result code. This crate also contains everything that needs the operating
//! system: address space for device pointers, pinned and managed memory that is mapped twice, and a fault handler for the
//! host's accesses to them.

#[macro_use]
mod exports;

mod address;
mod answer;
mod array;
mod batch;
mod calls;
mod capture;
mod context;
mod device;
mod engine;
mod fatbin;
mod function;
mod graph;
mod graph_change;
mod graph_edges;
mod graph_memory;
mod graph_node;
mod graph_parameters;
mod graph_values;
mod guard;
mod host;
mod host_range;
mod interfaces;
mod interprocess;
mod introspection;
mod jit_log;
mod layout;
mod library;
mod link;
mod managed;
mod memory;
mod module;
mod nccl;
mod observation;
mod occupancy;
mod peer;
mod pinned;
mod pointer;
mod pool;
mod rows;
mod shareable;
mod shared_event;
mod shared_file;
mod shared_memory;
mod stream;
mod stream_attribute;
mod stream_value;
mod symbols;
mod tensor_map;
mod texture;
mod types;
mod user_object;
mod virtual_memory;

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use virtual_gpu::engine::with_own_default_stream;

pub use array::{Array, MipmappedArray, PlaneDescription, VolumeDescription};
pub use batch::{BatchCopy, CopyAttributes};
pub use context::{Affinity, CreateParameters};
pub use device::DeviceProperties;
pub use graph::{Graph, GraphExec, InstantiateParameters};
pub use graph_change::{AttributeValue, OldKernelParameters};
pub use graph_edges::EdgeData;
pub use graph_memory::AllocationNodeParameters;
pub use graph_node::{GraphNode, HostParameters, KernelParameters, SetParameters, UpdateInfo};
pub use graph_parameters::{CopyNodeParameters, NodeParameters};
pub use graph_values::BatchNodeParameters;
pub use host::{HostFunction, StreamCallback};
pub use interprocess::IpcHandle;
pub use jit_log::OptionValue;
pub use layout::{LAYOUTS, Layout};
pub use library::{Kernel, Library};
pub use link::LinkState;
pub use managed::MemoryLocation;
pub use nccl::{Communicator, Id, ParameterHandle, SimulationInfo, WaitDescription, Window};
pub use observation::*;
pub use occupancy::{BlockToShared, LaunchAttribute, LaunchConfig};
pub use pointer::{Arguments, Bytes, Out, Outs, Source, Text};
pub use pool::{Pool, PoolProperties};
pub use rows::{Copy2D, Copy3D, Plane, Volume};
pub use stream_value::BatchOperation;
pub use tensor_map::TensorMap;
pub use texture::{ResourceDescription, TextureDescription, ViewDescription};
pub use types::{Context, Device, DevicePointer, Event, Function, GreenContext, Module, Stream};
pub use user_object::UserObject;
pub use virtual_memory::{AccessDescription, AllocationProperties};

/// An exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name in C.
    pub name: &'static str,
    /// The parameter types, as written in the table; `None` for a function that is not supported.
    pub parameters: Option<&'static [&'static str]>,
}

macro_rules! export {
    (
        cuda { $(fn $cuda:ident $cuda_args:tt = $cuda_to:path $(, $own:ident)?;)* }
        older cuda { $(fn $older:ident $older_args:tt = $older_to:path $(, $older_own:ident)?;)* }
        nccl { $(fn $nccl:ident($($nccl_arg:ident: $nccl_type:ty),*) = $nccl_to:path;)* }
        unsupported cuda { $($no_cuda:ident)* }
    ) => {
        /// The exported symbols, except for the error texts, the `_ptds` and `_ptsz` forms of supported functions, and
        /// the symbols that start with `virtualGpu`.
        pub const EXPORTS: &[Export] = &[
            $(export!(listed $cuda $cuda_args),)*
            $(export!(listed $older $older_args),)*
            $(Export { name: stringify!($nccl), parameters: Some(&[$(stringify!($nccl_type)),*]) },)*
            $(Export { name: stringify!($no_cuda), parameters: None },)*
        ];

        /// Returns the address of an exported driver function, by its full name, such as `cuMemcpyHtoD_v2_ptds`.
        pub(crate) fn address_of(name: &str) -> Option<usize> {
            match name {
                "cuGetErrorName" => return Some(cuGetErrorName as *const () as usize),
                "cuGetErrorString" => return Some(cuGetErrorString as *const () as usize),
                $(stringify!($cuda) => return Some($cuda as *const () as usize),)*
                $(stringify!($older) => return Some($older as *const () as usize),)*
                $(stringify!($no_cuda) => return Some($no_cuda as *const () as usize),)*
                _ => {}
            }
            $($(export!(own $own $cuda $cuda_args $cuda_to; name);)?)*
            $($(export!(own $older_own $older $older_args $older_to; name);)?)*
            None
        }

        $(export!(one $cuda $cuda_args $cuda_to);)*
        $(export!(one $older $older_args $older_to);)*
        $(
            /// # Safety
            /// The arguments must meet the requirements in NCCL's documentation.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $nccl($($nccl_arg: $nccl_type),*) -> c_uint {
                let arguments: &[u64] = &[$(calls::argument(&$nccl_arg)),*];
                static FUNCTION: calls::Function = calls::Function::named(stringify!($nccl));
                answer::nccl(&FUNCTION, arguments, &|| $nccl_to($($nccl_arg),*))
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
    };
    (listed $cuda:ident($($arg:ident: $type:ty),*)) => {
        Export { name: stringify!($cuda), parameters: Some(&[$(stringify!($type)),*]) }
    };
    (one $cuda:ident($($arg:ident: $type:ty),*) $to:path) => {
        /// # Safety
        /// The arguments must meet the requirements in the CUDA driver's documentation.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $cuda($($arg: $type),*) -> c_uint {
            let arguments: &[u64] = &[$(calls::argument(&$arg)),*];
            static FUNCTION: calls::Function = calls::Function::named(stringify!($cuda));
            answer::cuda(&FUNCTION, arguments, &|| $to($($arg),*))
        }
    };
    // Exports the form of a function that uses the thread's own default stream, and returns its address from the function that
    // contains this.
    (own $own:ident $cuda:ident($($arg:ident: $type:ty),*) $to:path; $name:ident) => {{
        #[unsafe(export_name = concat!(stringify!($cuda), "_", stringify!($own)))]
        unsafe extern "C" fn own($($arg: $type),*) -> c_uint {
            let arguments: &[u64] = &[$(calls::argument(&$arg)),*];
            static FUNCTION: calls::Function = calls::Function::named(stringify!($cuda));
            with_own_default_stream(|| answer::cuda(&FUNCTION, arguments, &|| $to($($arg),*)))
        }
        if $name == concat!(stringify!($cuda), "_", stringify!($own)) {
            return Some(own as *const () as usize);
        }
    }};
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

/// Does nothing. NCCL 2.24 to 2.29 declare this function without documentation, and bindings to them look it up when they
/// load the library.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInit() {}

/// Prints NCCL's parameters to its log.
#[unsafe(no_mangle)]
pub extern "C" fn ncclParamDumpAll() {
    // The C function returns nothing. An error is kept for `ncclGetLastError`.
    let _ = answer::run_nccl("ncclParamDumpAll", &nccl::dump_parameters);
}

/// [`ncclParamDumpAll`] under the name that a profiler calls.
#[unsafe(no_mangle)]
pub extern "C" fn pncclParamDumpAll() {
    ncclParamDumpAll();
}

/// Returns the message from this thread's last failed NCCL call. As in NCCL, the communicator does not matter.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: Communicator) -> *const c_char {
    answer::nccl_last_error()
}
