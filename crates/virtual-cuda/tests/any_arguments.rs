//! Calls all exported functions in random order, with arguments that are valid, stale, foreign, null, or nonsense, and
//! expects each call to return. The arguments keep the promises of a C caller: a pointer that is not null points to as
//! much memory as the function requires.
//!
//! `SEED=7 CALLS=1000000 cargo test -p virtual-cuda --test any_arguments` makes a million other calls, in processes of
//! 20,000 calls each, from seed 7 on. A failure names the seed and the number of calls that repeat it. With `TRACE=1`, the
//! test also prints each function's name to standard error before the call.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::{MaybeUninit, size_of};
use std::num::NonZero;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many processes make calls if no number is given.
const SEEDS: u64 = 6;
/// The calls of each of these processes.
const CALLS: u64 = 3000;
/// How many calls a process makes at most. Few of them destroy objects, so the later calls of a process are the slower ones.
const MOST_CALLS: u64 = 20_000;
/// The variable that tells a child process which calls to make.
const CHILD: &str = "ANY_ARGUMENTS_CHILD";

/// The size of the host memory that pointers point to, which is enough for the largest copy of anything that can be
/// allocated here.
const ROOM: usize = 2 << 20;
/// The largest alignment that a function asks for: that of a tensor map.
const ALIGNMENT: usize = 64;
/// Byte and element counts: some from realistic calls, and some that cause an overflow.
const SIZES: [usize; 12] =
    [0, 1, 4, 6, 100, 4096, 65_536, 1 << 20, 1 << 41, usize::MAX / 4, usize::MAX / 2 + 1, usize::MAX];
const NUMBERS: [u32; 16] = [0, 0, 0, 1, 1, 2, 3, 4, 5, 7, 8, 33, 64, 1025, 0x8000_0000, u32::MAX];
/// The first calls, which create objects for later calls to use.
const START: [&str; 12] = [
    "cuInit",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuStreamCreate",
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventCreate",
    "cuMemAlloc_v2",
    "cuMemAlloc_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "ncclGetUniqueId",
];
/// Functions that do nothing until several others have been called in sequence.
const OFTEN: [&str; 5] = [
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamEndCapture",
    "cuMemsetD8Async",
    "cuGraphLaunch",
];
/// Parts of the names of functions that destroy objects or make them unusable. They are called less often.
const ENDS: [&str; 10] = [
    "Destroy",
    "Release",
    "Reset",
    "Free",
    "Unload",
    "Abort",
    "Finalize",
    "PopCurrent",
    "SetCurrent",
    "BeginCapture",
];

const PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.global .align 4 .b8 table[64];
.visible .entry store(.param .u64 to, .param .u32 value)
{
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [value];
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry nothing() { ret; }
\0";
const TEXTS: [&str; 7] = [PTX, "store\0", "nothing\0", "table\0", "\0", "no such thing\0", "\u{fffd} ü\0"];

unsafe extern "C" fn host_function(_: *mut c_void) {}

unsafe extern "C" fn stream_callback(_: *mut c_void, _: c_uint, _: *mut c_void) {}

unsafe extern "C" fn to_shared(block_size: c_int) -> usize {
    block_size as usize * 16
}

/// Generates arguments and remembers the results of earlier calls.
struct Caller {
    random: u64,
    /// Results of earlier calls, by type (as written in the table of exports).
    given: BTreeMap<&'static str, Vec<u64>>,
    memory: &'static mut [[u8; ROOM]; 4],
    /// The function to call, and whether its arguments may be nonsense.
    function: &'static str,
    is_wild: bool,
    /// The current call's result pointers, with the types of the results.
    results: Vec<(&'static str, usize)>,
    has_null_result: bool,
}

impl Caller {
    fn new(seed: u64) -> Self {
        // Allocated on the heap, because an array of this size is too large for a thread's stack.
        let memory = Box::leak(vec![0; 4 * ROOM + ALIGNMENT].into_boxed_slice());
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let memory = memory[start..][..4 * ROOM].as_chunks_mut().0.try_into().expect("four");
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (given, results) = (BTreeMap::new(), Vec::new());
        Self { random, given, memory, function: "", is_wild: false, results, has_null_result: false }
    }

    /// Returns a random number below `end` (xorshift64*).
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn address(&mut self, at: usize) -> u64 {
        self.memory[at].as_ptr() as u64
    }

    /// Returns an earlier result of type `kind` or, rarely, of another type.
    fn known(&mut self, kind: &str) -> u64 {
        let kinds: Vec<&str> = self.given.keys().copied().collect();
        let another = self.is_wild && self.below(16) == 0 && !kinds.is_empty();
        let kind = if another { self.one_of(&kinds) } else { kind };
        let known = self.given.get(kind).map_or(0, Vec::len);
        // The latest results are the most likely to be alive.
        let recent = known.min(4);
        let choice = if self.is_wild { self.below(12) } else { 11 };
        let latest = match (choice, known) {
            (0, _) => return self.one_of(&[0, 1, 2, 3, 0xdead_beef, u64::MAX]),
            (_, 0) => return 0,
            (1..4, _) => self.below(known),
            _ => self.below(recent),
        };
        self.given[kind][known - 1 - latest]
    }

    /// Returns a value of type `kind`, as written in the table of exports.
    fn value<T: Copy>(&mut self, kind: &'static str) -> T {
        let bytes = self.bytes(kind);
        assert!(size_of::<T>() <= bytes.len(), "{kind}");
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: `value` has room for its own size. Any bits are valid for the integers, pointers, handles, and plain
        // structures that functions take here, and function pointers come from `host_function` and `to_shared`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), size_of::<T>());
            value.assume_init()
        }
    }

    fn bytes(&mut self, kind: &'static str) -> [u8; 128] {
        let mut bytes = [0; 128];
        if kind == "Id" {
            if self.below(4) != 0 {
                bytes = self.memory[3][..128].try_into().expect("128 bytes");
            }
            return bytes;
        }
        let word = self.word(kind);
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    fn word(&mut self, kind: &'static str) -> u64 {
        if let Some(given) = kind.strip_prefix("Out<").and_then(|kind| kind.strip_suffix('>')) {
            if self.is_wild && self.below(12) == 0 {
                self.has_null_result = true;
                return 0;
            }
            let at = if given == "Id" { 3 } else { self.results.len() % 3 };
            if given == "usize" && self.function.starts_with("cuGraph") {
                // The number of elements of the arrays before it.
                let room = self.one_of(&[0, 1, 2, 7_u64]);
                self.memory[at][..8].copy_from_slice(&room.to_le_bytes());
            }
            self.results.push((given, at));
            return self.address(at);
        }
        if !self.is_wild
            && let Some(word) = self.tame_word(kind)
        {
            return word;
        }
        let is_null = self.is_wild && self.below(12) == 0;
        if (kind, self.function) == ("c_uint", "cuPointerGetAttributes") {
            // The arrays have at least this many elements.
            return self.one_of(&[0, 1, 2, 3]);
        }
        // Arrays of nodes have at least this many elements.
        let takes_nodes = [
            "cuGraph",
            "cuStreamUpdateCapture",
            "cuStreamBeginCaptureTo",
            "cuMemcpyBatch",
            "cuMemcpy3DBatch",
            "cuMemRangeGetAttribute",
        ];
        if kind == "usize" && takes_nodes.iter().any(|it| self.function.starts_with(it)) {
            return self.one_of(&[0, 0, 1, 1, 2]);
        }
        if self.function == "cuGraphDebugDotPrint" && kind == "Text" {
            return c"/dev/null".as_ptr() as u64;
        }
        match kind {
            "usize" => self.one_of(&SIZES) as u64,
            "Device" => self.one_of(&[0, 0, 0, 0, 1, 1, 2, -1, i32::MAX]) as u32 as u64,
            "u8" | "c_uint" | "c_int" | "c_ulonglong" => u64::from(self.one_of(&NUMBERS)),
            "MemoryLocation" => u64::from(self.one_of(&NUMBERS)) | u64::from(self.one_of(&NUMBERS)) << 32,
            "DevicePointer" => {
                self.known("DevicePointer").wrapping_add(self.one_of(&[0, 0, 0, 0, 4, 1, 4096, u64::MAX]))
            }
            "HostFunction" if !is_null => host_function as *const () as u64,
            "StreamCallback" if !is_null => stream_callback as *const () as u64,
            "BlockToShared" if !is_null => to_shared as *const () as u64,
            "Text" if !is_null => self.one_of(&TEXTS).as_ptr() as u64,
            "Arguments" if !is_null => self.arguments(),
            "Outs" if !is_null => {
                let to = self.address(1);
                Box::leak(vec![to; 2048].into_boxed_slice()).as_ptr() as u64
            }
            "HostFunction" | "StreamCallback" | "BlockToShared" | "Text" | "Arguments" | "Outs"
            | "*constc_void" => 0,
            "Bytes" if !is_null => self.address(2),
            "*mutc_void" if !is_null => {
                let known = self.known("*mutc_void");
                let own = self.address(2);
                self.one_of(&[own, own, known])
            }
            "Bytes" | "*mutc_void" => 0,
            _ if kind.starts_with("Source<") => {
                // Structures that contain pointers are read as zeros.
                let zeros = self.address(2);
                self.memory[2][..256].fill(0);
                if self.function.starts_with("cuTensorMap") && !self.is_wild {
                    // The dimensions, the tile, and the steps of a tensor of rank 1.
                    self.memory[2][0] = 8;
                }
                if matches!(kind, "Source<PlaneDescription>" | "Source<VolumeDescription>") && !self.is_wild {
                    // A 1D array of 8 numbers: the width, and the format and the number of channels.
                    let format = if kind == "Source<PlaneDescription>" { 16 } else { 24 };
                    self.memory[2][0] = 8;
                    self.memory[2][format..][..8].copy_from_slice(&[0x20, 0, 0, 0, 1, 0, 0, 0]);
                    // CUDA_ARRAY3D_SURFACE_LDST
                    self.memory[2][32] = 2;
                }
                if kind == "Source<ResourceDescription>" && !self.is_wild {
                    // CU_RESOURCE_TYPE_ARRAY, and the array's handle.
                    let array = self.known("Array");
                    self.memory[2][8..16].copy_from_slice(&array.to_le_bytes());
                }
                if kind == "Source<PoolProperties>" && !self.is_wild {
                    // CU_MEM_ALLOCATION_TYPE_PINNED, no handle, CU_MEM_LOCATION_TYPE_DEVICE, GPU 0
                    self.memory[2][..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
                }
                if kind == "Source<AllocationProperties>" && !self.is_wild {
                    // CU_MEM_ALLOCATION_TYPE_PINNED, no handle, CU_MEM_LOCATION_TYPE_DEVICE, GPU 0
                    self.memory[2][..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
                }
                if kind == "Source<AccessDescription>" && !self.is_wild {
                    // CU_MEM_LOCATION_TYPE_DEVICE, GPU 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                    self.memory[2][..12].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
                }
                if is_null { 0 } else { zeros }
            }
            handle => self.known(handle),
        }
    }

    /// Returns a number or text that the function is likely to accept.
    fn tame_word(&mut self, kind: &str) -> Option<u64> {
        let number = |number: u32| Some(u64::from(number));
        match (kind, self.function) {
            ("usize", function) if function.starts_with("cuMemAlloc") => Some(self.one_of(&[4096, 65_536])),
            ("usize", "cuMemCreate" | "cuMemAddressReserve" | "cuMemUnmap" | "cuMemAddressFree") => {
                Some(2 << 20)
            }
            ("usize", "cuMemMap") => Some(self.one_of(&[0, 2 << 20])),
            ("usize", "cuMemSetAccess") => Some(self.one_of(&[1, 2 << 20])),
            ("usize", _) => Some(self.one_of(&[0, 4, 16, 64])),
            ("Device", _) => Some(0),
            ("c_uint", function) if function.starts_with("cuLaunch") => number(self.one_of(&[1, 1, 2, 32])),
            // The type u16, the rank 1, and the first choice of each other option.
            ("c_uint", "cuTensorMapEncodeTiled") => number(self.one_of(&[0, 1])),
            ("c_uint" | "c_int" | "c_ulonglong", _) => number(self.one_of(&[0, 0, 1, 1, 2, 3, 4, 7])),
            ("MemoryLocation", _) => Some(1),
            ("DevicePointer", _) => Some(self.known("DevicePointer")),
            ("Text", "cuModuleLoadData") => Some(PTX.as_ptr() as u64),
            ("Text", "cuModuleGetFunction") => Some(self.one_of(&["store\0", "nothing\0"]).as_ptr() as u64),
            ("Text", "cuModuleGetGlobal_v2") => Some(c"table".as_ptr() as u64),
            _ => None,
        }
    }

    /// Returns the arguments for a kernel with two parameters: a device address and a number.
    fn arguments(&mut self) -> u64 {
        let address = self.known("DevicePointer");
        let values = Box::leak(Box::new([address, 7]));
        Box::leak(Box::new([&raw const values[0], &raw const values[1]])).as_ptr() as u64
    }

    /// Checks a completed call and stores its results for later calls.
    fn ended(&mut self, function: &str, code: c_uint) {
        assert!(
            code != 0 || !self.has_null_result || TAKES_NULL.contains(&function),
            "{function} succeeded with a null result pointer"
        );
        for (kind, at) in std::mem::take(&mut self.results) {
            let value = u64::from_le_bytes(self.memory[at][..8].try_into().expect("8 bytes"));
            // A host address must not be used after its memory is freed.
            if code == 0 && at != 3 && function != "cuMemHostGetDevicePointer_v2" {
                self.given.entry(kind).or_default().push(value);
            }
        }
        self.has_null_result = false;
    }
}

/// Functions that accept null for some of their results, or zero bytes.
const TAKES_NULL: [&str; 27] = [
    "ncclGroupSimulateEnd",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuFuncGetParamInfo",
    "cuGetProcAddress_v2",
    "cuGraphGetEdges",
    "cuGraphGetEdges_v2",
    "cuGraphGetNodes",
    "cuGraphGetRootNodes",
    "cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependentNodes",
    "cuGraphNodeGetDependentNodes_v2",
    "cuKernelGetParamInfo",
    "cuLibraryGetGlobal",
    "cuLinkAddData_v2",
    "cuLinkComplete",
    "cuLinkCreate_v2",
    "cuMemGetAddressRange_v2",
    "cuMemcpyAtoHAsync_v2",
    "cuMemcpyAtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuModuleGetGlobal_v2",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamGetCtx_v2",
];

/// All implemented functions, in a form that takes generated arguments.
type Functions = Vec<(&'static str, Box<dyn Fn(&mut Caller) -> c_uint>)>;

macro_rules! functions {
    (
        cuda { $(fn $cuda:ident($($cuda_arg:ident: $cuda_type:ty),*) = $cuda_to:path $(, $own:ident)?;)* }
        older cuda { $($older:tt)* }
        nccl { $(fn $nccl:ident($($nccl_arg:ident: $nccl_type:ty),*) = $nccl_to:path;)* }
        unsupported cuda { $($no_cuda:ident)* }
    ) => {{
        let mut functions: Functions = Vec::new();
        $(functions.push(functions!(one $cuda($($cuda_type),*)));)*
        $(functions.push(functions!(one $nccl($($nccl_type),*)));)*
        functions
    }};
    (one $function:ident($($kind:ty),*)) => {
        (
            stringify!($function),
            Box::new(|caller: &mut Caller| {
                let _ = &caller;
                // SAFETY: the generated arguments keep the promises of a C caller.
                unsafe { virtual_cuda::$function($(caller.value(kind(stringify!($kind)))),*) }
            }),
        )
    };
}

/// Removes the spaces that `stringify!` may insert into a type's name.
fn kind(written: &'static str) -> &'static str {
    match written.contains(' ') {
        true => Box::leak(written.replace(' ', "").into_boxed_str()),
        false => written,
    }
}

fn call_at_random(seed: u64, calls: usize) {
    let functions = virtual_cuda::exports!(functions);
    let mut caller = Caller::new(seed);
    let (mut answered, mut succeeded) = (BTreeSet::new(), BTreeSet::new());
    let mut made = 0;
    while made < calls {
        // Set up a GPU first, so that not every call fails for lack of one.
        let place = |name: &str| functions.iter().position(|(of, _)| *of == name).expect("it is exported");
        let at = match START.get(made) {
            Some(&start) => place(start),
            None if caller.below(8) == 0 => place(caller.one_of(&OFTEN)),
            None => caller.below(functions.len()),
        };
        let (name, function) = &functions[at];
        if made >= START.len() && ENDS.iter().any(|end| name.contains(end)) && caller.below(6) != 0 {
            continue;
        }
        caller.function = name;
        // These take host addresses as well, so an arbitrary address would break a C caller's promise.
        let takes_any_address = matches!(*name, "cuMemcpy" | "cuMemcpyAsync");
        caller.is_wild = made >= START.len() && caller.below(3) == 0 && !takes_any_address;
        if std::env::var_os("TRACE").is_some() {
            eprintln!("{made}: {name}");
        }
        made += 1;
        let code = function(&mut caller);
        caller.ended(name, code);
        answered.insert(*name);
        if code == 0 {
            succeeded.insert(*name);
        }
    }
    let (called, good) = (answered.len(), succeeded.len());
    assert!(3 * good > called, "of {called} functions that were called, only {good} ever succeeded");
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

/// Makes calls in another process, and expects it to end well.
fn call_in_child(seed: u64, calls: u64) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "every_call_is_answered", "--nocapture"])
        .env(CHILD, seed.to_string())
        .env("CALLS", calls.to_string())
        .env("VIRTUAL_GPU_COUNT", "2")
        .env("VIRTUAL_GPU_TIMEOUT", "0.01")
        .env("VIRTUAL_GPU_CHECKS", if seed.is_multiple_of(2) { "error" } else { "off" })
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    let end: String = said.chars().skip(said.chars().count().saturating_sub(6000)).collect();
    let with = format!("SEED={seed} CALLS={calls}");
    assert!(child.status.success(), "{with}: {}\n{end}", child.status);
    assert!(!said.contains("panicked"), "{with}: {end}");
}

#[test]
fn every_call_is_answered() {
    if let Some(seed) = number(CHILD) {
        return call_at_random(seed, number("CALLS").expect("the parent sets it") as usize);
    }
    let (calls, per_process) = match number("CALLS") {
        Some(calls) => (calls, calls.clamp(1, MOST_CALLS)),
        None => (SEEDS * CALLS, CALLS),
    };
    let first = number("SEED").unwrap_or(0);
    let (end, next) = (first + calls.div_ceil(per_process), AtomicU64::new(first));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed))
                    .take_while(|&seed| seed < end)
                    .for_each(|seed| call_in_child(seed, per_process));
            });
        }
    });
}
