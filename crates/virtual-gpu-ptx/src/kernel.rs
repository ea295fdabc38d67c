//! A loaded module and its kernels.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::instruction::{Instruction, Slot};

/// The contents of a PTX text.
#[derive(Debug)]
pub struct Module {
    pub(crate) target: u32,
    pub(crate) kernels: BTreeMap<String, Arc<Kernel>>,
    pub(crate) variables: Vec<Variable>,
}

impl Module {
    /// Returns the architecture that the text was compiled for: 70 for `sm_70`; 0 if the text does not name one.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Returns the kernel with that name.
    pub fn kernel(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.get(name)
    }

    /// Returns every kernel's name, sorted.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }

    /// Returns the `.global` and `.const` variables, in the order in which a launch expects them.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }
}

/// A `.global` or `.const` variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// The required alignment of its address, in bytes.
    pub align: u64,
    /// The bytes of its initial value, without any addresses of variables.
    pub initial: Vec<u8>,
    /// The addresses of variables within its initial value.
    pub addresses: Vec<AddressOf>,
    /// Whether it is `.const`.
    pub is_const: bool,
    /// Whether a kernel uses it, or the initial value of a used variable contains its address. Compilers add dozens of variables
    /// that nothing uses.
    pub is_used: bool,
}

/// The address of a variable, stored in the initial value of another variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressOf {
    /// The offset of the first of its eight bytes.
    pub at: u64,
    /// The variable's index in [`Module::variables`].
    pub variable: u32,
    /// The number of bytes added to the variable's address.
    pub offset: i64,
}

impl Variable {
    /// Returns the variable's initial bytes if the module's variables are at `globals`. Any bytes after the
    /// returned ones are zero.
    pub fn image(&self, globals: &[u64]) -> Vec<u8> {
        let mut image = self.initial.clone();
        for &AddressOf { at, variable, offset } in &self.addresses {
            let base = globals.get(variable as usize).copied().unwrap_or(0);
            image[at as usize..][..8].copy_from_slice(&base.wrapping_add_signed(offset).to_le_bytes());
        }
        image
    }
}

/// A kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The offset of its first byte within the parameters.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
    /// The required alignment of its offset.
    pub align: u32,
}

/// A line of the CUDA source that a PTX instruction came from (`.loc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaLine {
    /// The file, under the name that was passed to NVRTC.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

/// The meaning of a uniform value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Uniform {
    /// A constant.
    Constant(u64),
    /// `%ntid`, by axis.
    BlockSize(u8),
    /// `%nctaid`
    GridSize(u8),
    /// `%ctaid`
    BlockIndex(u8),
    /// `%nwarpid`
    Warps,
    /// `%clusterid`, by axis
    ClusterIndex(u8),
    /// `%nclusterid`
    ClusterGridSize(u8),
    /// `%cluster_ctaid`
    IndexInCluster(u8),
    /// `%cluster_nctaid`
    ClusterSize(u8),
    /// `%cluster_ctarank`
    RankInCluster,
    /// `%cluster_nctarank`
    BlocksInCluster,
    /// `%is_explicit_cluster`: 1 if the launch or the kernel states a size.
    IsExplicitCluster,
    /// `%envreg1`: the upper half of the address of a cooperative launch's barrier. The manual leaves these registers
    /// to the driver; `cooperative_groups` reads these two.
    WorkspaceHigh,
    /// `%envreg2`: the lower half.
    WorkspaceLow,
    /// `%dynamic_smem_size`
    DynamicShared,
    /// `%total_smem_size`
    TotalShared,
    /// `%reserved_smem_offset_begin` and the registers like it: an offset in the shared memory that is reserved for the
    /// system.
    ReservedShared {
        /// The number of bytes after its start.
        offset: u32,
    },
    /// Bytes from the launch's parameters, zero- or sign-extended.
    Parameter {
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes: 1, 2, 4, or 8.
        bytes: u8,
        /// Whether it is sign-extended.
        signed: bool,
    },
    /// The address of a module variable.
    Global {
        /// Its index in [`Module::variables`].
        index: u32,
        /// The number of bytes added to it.
        offset: i64,
    },
    /// An address in the block's shared memory, which names the block if its cluster has others.
    Shared {
        /// The offset in shared memory.
        offset: i64,
    },
    /// The start of dynamic shared memory, plus an offset. It exists only while a kernel is being lowered.
    DynamicStart {
        /// The number of bytes added to it.
        offset: i64,
    },
}

/// A register value that doesn't change from the start of a block to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as in PTX")]
pub enum ThreadConstant {
    ThreadIndex(u8),
    LaneId,
    WarpId,
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
}

/// What a kernel requires of the clusters in its launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterRules {
    /// `.explicitcluster`: whether the launch or the kernel must state a size.
    pub is_explicit: bool,
    /// `.reqnctapercluster`: the only allowed number of blocks along each axis.
    pub required: Option<[u32; 3]>,
    /// `.maxclusterrank`: the most blocks.
    pub most_blocks: Option<u32>,
}

/// The size of the shared memory that the system reserves for each block: 1 KiB ("Shared Memory" for compute capability
/// 8.x, in the CUDA C++ Programming Guide). The manual doesn't say where it lies. An RTX 3060 has it after the kernel's
/// own shared memory, at the next multiple of 128 bytes, and reports an end that is 288 bytes after the start: as many
/// bytes as `cooperative_groups` needs.
pub(crate) const RESERVED_SHARED: u32 = 1024;
pub(crate) const RESERVED_SHARED_USED: u32 = 288;
const RESERVED_SHARED_ALIGNMENT: u32 = 128;

/// A kernel, ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared_offset: u32,
    /// Static shared variables: name, offset, and number of bytes.
    pub(crate) shared_variables: Vec<(String, u32, u64)>,
    pub(crate) shared_unit: u8,
    pub(crate) has_partial_barriers: bool,
    pub(crate) uses_heap: bool,
    pub(crate) local_bytes: u32,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) required_threads: Option<[u32; 3]>,
    pub(crate) cluster: ClusterRules,
    pub(crate) code: Vec<Instruction>,
    pub(crate) lines: Vec<u32>,
    /// The index into `cuda_lines`; `u32::MAX` if there is none.
    pub(crate) locations: Vec<u32>,
    pub(crate) cuda_lines: Vec<CudaLine>,
    pub(crate) registers: Registers,
    pub(crate) frames: Vec<Frame>,
}

/// The resources for calls to a function that may call itself: the registers that a call saves, and a frame on the
/// thread's stack, after its other local memory.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The 32-bit registers that a call saves.
    pub words: Range<u32>,
    /// The 64-bit registers that a call saves.
    pub longs: Range<u32>,
    /// The predicates that a call saves.
    pub predicates: Range<u32>,
    /// The register that holds the frame's first address.
    pub base: Slot,
    /// Its size in bytes.
    pub bytes: u32,
    /// The offset in the frame and the size in bytes of each parameter.
    pub parameters: Vec<(u32, u32)>,
    /// The same for each result.
    pub results: Vec<(u32, u32)>,
}

/// The register files that a kernel needs.
#[derive(Clone, Debug, Default)]
pub struct Registers {
    /// The number of 32-bit registers.
    pub words: u32,
    /// The number of 64-bit registers.
    pub longs: u32,
    /// Predicates.
    pub predicates: u32,
    /// Uniform 32-bit values, in the order of their slots.
    pub uniform_words: Vec<Uniform>,
    /// Uniform 64-bit values, in the order of their slots.
    pub uniform_longs: Vec<Uniform>,
    /// The 32-bit registers that are set once per block size.
    pub thread_constants: Vec<(Slot, ThreadConstant)>,
}

impl Kernel {
    /// Returns the kernel's name, as spelled in the module.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the total size of the parameters in bytes.
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes as usize
    }

    /// Returns the size of static shared memory in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Returns where dynamic shared memory starts: [`Self::shared_bytes`], aligned.
    #[inline]
    pub fn dynamic_shared_offset(&self) -> u32 {
        self.dynamic_shared_offset
    }

    /// Returns where the shared memory that is reserved for the system lies in a launch with this number of dynamic
    /// bytes, or `None` if the kernel doesn't ask for its address. `cooperative_groups` synchronizes tiles that are
    /// larger than a warp through this memory.
    pub fn reserved_shared(&self, dynamic_shared: u32) -> Option<Range<u32>> {
        let is_asked_for = |uniform: &Uniform| matches!(uniform, Uniform::ReservedShared { .. });
        let end = self.dynamic_shared_offset.checked_add(dynamic_shared)?;
        let start = end.checked_next_multiple_of(RESERVED_SHARED_ALIGNMENT)?;
        let reserved = start..start.checked_add(RESERVED_SHARED)?;
        self.registers.uniform_words.iter().any(is_asked_for).then_some(reserved)
    }

    /// Returns the size of its smallest access to shared memory in bytes.
    #[inline]
    pub fn shared_unit(&self) -> u8 {
        self.shared_unit
    }

    /// Returns whether the kernel synchronizes parts of a block, through barriers for some of its threads or through
    /// fences.
    #[inline]
    pub fn has_partial_barriers(&self) -> bool {
        self.has_partial_barriers
    }

    /// Returns whether the kernel allocates or frees memory (`malloc`, `free`).
    #[inline]
    pub fn uses_heap(&self) -> bool {
        self.uses_heap
    }

    /// Returns the program's name for the static shared variable at an offset, and the offset within the variable. For
    /// dynamic shared memory, returns `None` and the offset within that memory.
    pub fn shared_location(&self, offset: u64) -> (Option<String>, u64) {
        let found = self.shared_variables.iter().find(|(_, start, size)| {
            offset.checked_sub(u64::from(*start)).is_some_and(|distance| distance < *size)
        });
        match found {
            Some((name, start, _)) => (Some(unmangled(name).to_owned()), offset - u64::from(*start)),
            None => (None, offset.saturating_sub(u64::from(self.dynamic_shared_offset))),
        }
    }

    /// Returns the size of local memory per thread in bytes.
    #[inline]
    pub fn local_bytes(&self) -> u32 {
        self.local_bytes
    }

    /// `.maxntid`: returns the maximum block size, if there is one.
    pub fn max_threads(&self) -> Option<[u32; 3]> {
        self.max_threads
    }

    /// `.reqntid`: returns the only allowed block size, if there is one.
    pub fn required_threads(&self) -> Option<[u32; 3]> {
        self.required_threads
    }

    /// Returns what it requires of the clusters in its launches.
    pub fn cluster(&self) -> ClusterRules {
        self.cluster
    }

    /// Returns the indices in [`Module::variables`] of the variables that the kernel uses.
    pub fn variables(&self) -> impl Iterator<Item = u32> {
        let mut named: Vec<u32> = self
            .registers
            .uniform_longs
            .iter()
            .chain(&self.registers.uniform_words)
            .filter_map(|uniform| match uniform {
                Uniform::Global { index, .. } => Some(*index),
                _ => None,
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        named.into_iter()
    }

    /// Returns the instructions.
    #[inline]
    pub fn code(&self) -> &[Instruction] {
        &self.code
    }

    /// Returns what each function that may call itself needs. If there is such a function, each thread has a stack.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the register files that it needs.
    #[inline]
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Returns the PTX line of the instruction at `pc`, from 1.
    #[inline]
    pub fn line(&self, pc: usize) -> u32 {
        self.lines.get(pc).copied().unwrap_or(0)
    }

    /// Returns the CUDA line of the instruction at `pc`, if the PTX records it.
    #[inline]
    pub fn cuda_line(&self, pc: usize) -> Option<&CudaLine> {
        self.cuda_lines.get(*self.locations.get(pc)? as usize)
    }
}

/// Returns `tile` for `_ZZ6matmulE4tile`: the last component of the C++ name of a function's static variable. Other
/// names are unchanged.
fn unmangled(name: &str) -> &str {
    let Some(local) = name.strip_prefix("_ZZ") else { return name };
    local
        .match_indices('E')
        .filter_map(|(at, _)| {
            let rest = &local[at + 1..];
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let len: usize = rest[..digits].parse().ok()?;
            let (own, rest) = rest[digits..].split_at_checked(len)?;
            (rest.is_empty() || rest.starts_with('_')).then_some(own)
        })
        .next()
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_variable_has_its_name_in_the_program() {
        for (mangled, name) in [
            ("_ZZ6matmulE4tile", "tile"),
            ("_ZZN3gpu6matmulEPfS0_E4tile", "tile"),
            ("_ZZ6matmulE4tile_0", "tile"),
            ("plain", "plain"),
            ("_ZZ6matmulE9tile", "_ZZ6matmulE9tile"),
        ] {
            assert_eq!(unmangled(mangled), name);
        }
    }
}
