//! The initial state of a launch and of each of its blocks.

use std::ops::Range;

use crate::block::Progress;
use crate::call_stack::CallStack;
use crate::convergence::{ConvergenceGroup, Readiness};
use crate::launch::SHARED_UNIT;
use crate::machine::Machine;
use crate::mask::{Mask, WIDTH};
use crate::registers::Chunk;
use virtual_gpu_core::memory::POISON;
use virtual_gpu_ptx::{ThreadConstant, Uniform, window};

impl Machine<'_> {
    /// Prepares everything that is the same for all blocks of the launch.
    pub(crate) fn prepare(&mut self) {
        let registers = self.kernel.registers();
        self.block.files.resize(registers, self.threads);
        let chunks = self.block.files.chunks;
        self.set_uniforms(|_| true);
        for &(slot, constant) in &registers.thread_constants {
            for thread in 0..chunks * WIDTH {
                let value = self.thread_constant(constant, thread);
                self.block.files.set_word(slot, thread, value);
            }
        }
        let shared = match self.reserved_shared() {
            Some(reserved) => reserved.end,
            None => self.kernel.dynamic_shared_offset() as usize + self.launch.dynamic_shared as usize,
        };
        self.shared_size = shared;
        let rounded = if self.launch.is_lenient { shared.next_multiple_of(SHARED_UNIT) } else { shared };
        self.block.shared.bytes.resize(rounded, 0);
        if self.launch.watch_shared && shared > 0 {
            let kernel = self.kernel;
            self.block.shadow.prepare(shared, kernel.shared_unit(), kernel.has_partial_barriers());
        }
        self.block.local.resize(self.local_bytes as usize * self.threads, POISON);
        self.block.clocks.resize(chunks * WIDTH, 0);
        self.block.stacks.clear();
    }

    /// Starts a block, with all its threads at the kernel's first instruction.
    pub(crate) fn start_block(&mut self, index: [u32; 3]) {
        self.block.index = index;
        let has_clusters = self.launch.cluster != [1; 3];
        self.set_uniforms(|uniform| {
            use Uniform::{BlockIndex, ClusterIndex, IndexInCluster, RankInCluster, Shared};
            let is_of_cluster =
                matches!(uniform, ClusterIndex(_) | IndexInCluster(_) | RankInCluster | Shared { .. });
            matches!(uniform, BlockIndex(_)) || is_of_cluster && has_clusters
        });
        let reserved = self.reserved_shared();
        let shared = &mut self.block.shared;
        shared.written.reset(shared.bytes.len() as u64);
        if let Some(reserved) = reserved {
            shared.bytes[reserved.clone()].fill(0);
            shared.written.mark(reserved.start as u64..reserved.end as u64);
        }
        let has_shared = !shared.bytes.is_empty();
        self.block.local.fill(POISON);
        self.block.clocks.fill(0);
        self.block.groups.clear();
        self.block.barriers.clear();
        self.block.mbarriers.start();
        self.block.copies.start(self.threads);
        self.saved -= self.block.stacks.iter().map(CallStack::saved_words).sum::<usize>();
        self.block.stacks.clear();
        if !self.kernel.frames().is_empty() {
            self.block.stacks.resize(self.threads, CallStack::default());
        }
        self.block.shadow.is_on = self.launch.watch_shared && self.race.is_none() && has_shared;
        if self.block.shadow.is_on {
            self.block.shadow.start();
        }
        self.start_observing();
        self.block.exits.clear();
        self.block.progress = Progress::default();
        let mask = Mask::first_threads(self.threads);
        if !mask.is_empty() {
            self.block.groups.push(ConvergenceGroup { pc: 0, mask, state: Readiness::Ready });
        }
    }

    /// Returns where the shared memory for the system lies, if the kernel uses it. It is 0 when a block starts.
    fn reserved_shared(&self) -> Option<Range<usize>> {
        let reserved = self.kernel.reserved_shared(self.launch.dynamic_shared)?;
        Some(reserved.start as usize..reserved.end as usize)
    }

    /// Sets the uniform values that `selects` accepts.
    #[inline]
    fn set_uniforms(&mut self, selects: impl Fn(Uniform) -> bool) {
        let registers = self.kernel.registers();
        for (at, &uniform) in registers.uniform_words.iter().enumerate() {
            if selects(uniform) {
                self.block.files.words[at] = Chunk([self.uniform(uniform) as u32; WIDTH]);
            }
        }
        for (at, &uniform) in registers.uniform_longs.iter().enumerate() {
            if selects(uniform) {
                self.block.files.longs[at] = Chunk([self.uniform(uniform); WIDTH]);
            }
        }
    }

    fn uniform(&self, uniform: Uniform) -> u64 {
        let axis = |extents: [u32; 3], axis: u8| u64::from(extents[usize::from(axis % 3)]);
        match uniform {
            Uniform::Constant(value) => value,
            Uniform::BlockSize(at) => axis(self.launch.block, at),
            Uniform::GridSize(at) => axis(self.launch.grid, at),
            Uniform::BlockIndex(at) => axis(self.block.index, at),
            Uniform::ClusterIndex(at) => axis(self.block.index, at) / axis(self.launch.cluster, at).max(1),
            Uniform::ClusterGridSize(at) => self.cluster_grid()[usize::from(at % 3)],
            Uniform::IndexInCluster(at) => axis(self.block.index, at) % axis(self.launch.cluster, at).max(1),
            Uniform::ClusterSize(at) => axis(self.launch.cluster, at),
            Uniform::RankInCluster => self.cluster.rank as u64,
            Uniform::BlocksInCluster => self.cluster_blocks() as u64,
            Uniform::IsExplicitCluster => self.launch.is_explicit_cluster.into(),
            Uniform::Shared { offset } => {
                let is_alone = self.launch.cluster == [1; 3];
                let block = if is_alone { 0 } else { window::of_block(self.cluster.rank as u64) };
                block.wrapping_add_signed(offset)
            }
            Uniform::Warps => self.threads.div_ceil(32) as u64,
            Uniform::WorkspaceHigh => self.launch.workspace >> 32,
            Uniform::WorkspaceLow => self.launch.workspace & 0xffff_ffff,
            Uniform::DynamicShared => u64::from(self.launch.dynamic_shared),
            Uniform::TotalShared => {
                u64::from(self.kernel.dynamic_shared_offset()) + u64::from(self.launch.dynamic_shared)
            }
            Uniform::ReservedShared { offset } => {
                let reserved = self.reserved_shared().unwrap_or_default();
                reserved.start as u64 + u64::from(offset)
            }
            Uniform::Parameter { offset, bytes, signed } => self.parameter(offset, bytes, signed),
            Uniform::Global { index, offset } => {
                let base = self.launch.globals.get(index as usize).copied().unwrap_or(0);
                base.wrapping_add(offset as u64)
            }
            Uniform::DynamicStart { .. } => 0,
        }
    }

    fn parameter(&self, offset: u32, bytes: u8, signed: bool) -> u64 {
        let mut value = [0; 8];
        for (at, byte) in value.iter_mut().enumerate().take(usize::from(bytes)) {
            *byte = self.launch.parameters.get(offset as usize + at).copied().unwrap_or(0);
        }
        let shift = 64 - 8 * u32::from(bytes.clamp(1, 8));
        let value = u64::from_le_bytes(value);
        if signed { ((value << shift) as i64 >> shift) as u64 } else { value }
    }

    fn thread_constant(&self, constant: ThreadConstant, thread: usize) -> u32 {
        let lane = thread as u32 % 32;
        match constant {
            ThreadConstant::ThreadIndex(axis) => self.thread_index(thread)[usize::from(axis % 3)],
            ThreadConstant::LaneId => lane,
            ThreadConstant::WarpId => thread as u32 / 32,
            ThreadConstant::LaneMaskEq => 1 << lane,
            ThreadConstant::LaneMaskLt => (1 << lane) - 1,
            ThreadConstant::LaneMaskLe => u32::MAX >> (31 - lane),
            ThreadConstant::LaneMaskGt => !(u32::MAX >> (31 - lane)),
            ThreadConstant::LaneMaskGe => u32::MAX << lane,
        }
    }
}
