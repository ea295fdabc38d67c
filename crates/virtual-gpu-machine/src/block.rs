//! A block's state, and the machine that a launch runs on.

use std::sync::Mutex;

use super::call::CallStack;
use super::copies::Copies;
use super::fault::{Access, Fault, FaultKind, MemoryAccess, ThreadReport};
use super::file::{Files, Longs, MAX_LANES, Mask, WIDTH, Words};
use super::print::Printed;
use super::race::Race;
use super::resident::Watch;
use super::schedule::{Gate, Group};
use super::shadow::Shadow;
use super::touched::Record;
use super::{Execution, Launch};
use virtual_gpu_core::memory::{DeviceMemory, POISON, Written};
use virtual_gpu_ptx::instruction::Space;
use virtual_gpu_ptx::{Kernel, LaneConstant, Uniform};

/// Why a kernel can't go on. Boxed, since it is large and rare.
pub(super) type Stop = Box<Fault>;

/// A block's shared memory.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) bytes: Vec<u8>,
    pub(super) written: Written,
}

/// All that one block needs, kept from block to block and from launch to launch.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) files: Files,
    pub(super) shared: Shared,
    pub(super) local: Vec<u8>,
    /// Instructions that each lane executed, up to when it last changed company.
    pub(super) clocks: Vec<u64>,
    pub(super) groups: Vec<Group>,
    pub(super) gates: Vec<Gate>,
    /// `blockIdx`
    pub(super) index: [u32; 3],
    /// Lanes that have ended, with the place of the instruction that ended them.
    pub(super) exits: Vec<(usize, Mask)>,
    pub(super) watch: Watch,
    pub(super) shadow: Shadow,
    pub(super) copies: Copies,
    /// Of each lane, where the kernel has functions that may call themselves.
    pub(super) stacks: Vec<CallStack>,
}

/// A block's state and the record of what the launch touches.
#[derive(Debug, Default)]
pub(super) struct State {
    block: Block,
    record: Record,
}

/// States that no launch is using. As many as ever ran at the same time.
static IDLE: Mutex<Vec<State>> = Mutex::new(Vec::new());

pub(super) fn take_state() -> State {
    let mut idle = IDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    idle.pop().unwrap_or_default()
}

pub(super) fn give_back(state: State) {
    IDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(state);
}

/// A launch under way.
pub(super) struct Machine<'l> {
    pub(super) kernel: &'l Kernel,
    pub(super) launch: &'l Launch<'l>,
    pub(super) memory: &'l mut DeviceMemory,
    pub(super) block: &'l mut Block,
    pub(super) record: &'l mut Record,
    /// Threads of a block.
    pub(super) lanes: usize,
    /// Bytes of a thread's local memory, its stack included.
    pub(super) local_bytes: u64,
    /// 32-bit values that calls have saved, in all blocks that have begun.
    pub(super) saved: usize,
    /// The instruction being executed.
    pub(super) pc: usize,
    /// Instructions of the running group that are not yet in its lanes' clocks.
    pub(super) pending: u64,
    /// Counts what may let a thread that waits go on: stores, atomics that changed something, looks at a clock.
    pub(super) changes: u64,
    /// Counts what may see such a change: loads and atomics.
    pub(super) looks: u64,
    /// Slot of the allocation accessed last.
    pub(super) last_slot: usize,
    pub(super) instructions: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) longest_thread: u64,
    pub(super) unwritten: Option<ThreadReport>,
    /// The first race in shared memory. No more are looked for.
    pub(super) race: Option<Box<Race>>,
    pub(super) printed: Printed,
}

impl<'l> Machine<'l> {
    pub(super) fn new(
        kernel: &'l Kernel,
        launch: &'l Launch<'l>,
        memory: &'l mut DeviceMemory,
        state: &'l mut State,
    ) -> Self {
        let lanes = launch.block.iter().map(|&extent| extent as usize).product::<usize>().min(MAX_LANES);
        Self {
            kernel,
            launch,
            memory,
            block: &mut state.block,
            record: &mut state.record,
            lanes,
            local_bytes: u64::from(kernel.local_bytes())
                + if kernel.frames().is_empty() { 0 } else { launch.stack },
            saved: 0,
            pc: 0,
            pending: 0,
            changes: 0,
            looks: 0,
            last_slot: 0,
            instructions: 0,
            bytes_read: 0,
            bytes_written: 0,
            longest_thread: 0,
            unwritten: None,
            race: None,
            printed: Printed::default(),
        }
    }

    /// Runs every block.
    pub(super) fn run(mut self) -> Result<Execution, Stop> {
        let outcome = self.run_blocks();
        let memory = &*self.memory;
        let touched = self.record.drain(|slot| memory.in_slot(slot).map(|allocation| allocation.id()));
        if let Err(mut fault) = outcome {
            fault.printed = self.printed;
            return Err(fault);
        }
        Ok(Execution {
            instructions: self.instructions,
            bytes_read: self.bytes_read,
            bytes_written: self.bytes_written,
            longest_thread: self.longest_thread,
            touched,
            unwritten: self.unwritten,
            race: self.race,
            printed: self.printed,
        })
    }

    /// What is the same for all blocks of the launch.
    pub(super) fn prepare(&mut self) {
        let registers = self.kernel.registers();
        self.block.files.resize(registers, self.lanes);
        let chunks = self.block.files.chunks;
        for (at, &uniform) in registers.uniform_words.iter().enumerate() {
            self.block.files.words[at] = Words([self.uniform(uniform) as u32; WIDTH]);
        }
        for (at, &uniform) in registers.uniform_longs.iter().enumerate() {
            self.block.files.longs[at] = Longs([self.uniform(uniform); WIDTH]);
        }
        for &(slot, constant) in &registers.lane_constants {
            for lane in 0..chunks * WIDTH {
                let value = self.lane_constant(constant, lane);
                self.block.files.set_word(slot, lane, value);
            }
        }
        let shared = self.kernel.dynamic_shared_offset() as usize + self.launch.dynamic_shared as usize;
        self.block.shared.bytes.resize(shared, 0);
        if self.launch.watch_shared && shared > 0 {
            let kernel = self.kernel;
            self.block.shadow.prepare(shared, kernel.shared_unit(), kernel.has_partial_barriers());
        }
        self.block.local.resize(self.local_bytes as usize * self.lanes, POISON);
        self.block.clocks.resize(chunks * WIDTH, 0);
        self.block.stacks.clear();
    }

    pub(super) fn start_block(&mut self, index: [u32; 3]) {
        self.block.index = index;
        let registers = self.kernel.registers();
        for (at, &uniform) in registers.uniform_words.iter().enumerate() {
            if let Uniform::BlockIndex(_) = uniform {
                self.block.files.words[at] = Words([self.uniform(uniform) as u32; WIDTH]);
            }
        }
        for (at, &uniform) in registers.uniform_longs.iter().enumerate() {
            if let Uniform::BlockIndex(_) = uniform {
                self.block.files.longs[at] = Longs([self.uniform(uniform); WIDTH]);
            }
        }
        let shared = &mut self.block.shared;
        shared.written.reset(shared.bytes.len() as u64);
        let shared = &shared.bytes;
        self.block.local.fill(POISON);
        self.block.clocks.fill(0);
        self.block.groups.clear();
        self.block.gates.clear();
        self.block.copies.start(self.lanes);
        self.saved -= self.block.stacks.iter().map(CallStack::saved_words).sum::<usize>();
        self.block.stacks.clear();
        if !self.kernel.frames().is_empty() {
            self.block.stacks.resize(self.lanes, CallStack::default());
        }
        self.block.shadow.is_on = self.launch.watch_shared && self.race.is_none() && !shared.is_empty();
        if self.block.shadow.is_on {
            self.block.shadow.start();
        }
        self.block.exits.clear();
        self.block.watch = Watch::default();
    }

    fn uniform(&self, uniform: Uniform) -> u64 {
        let axis = |extents: [u32; 3], axis: u8| u64::from(extents[usize::from(axis % 3)]);
        match uniform {
            Uniform::Constant(value) => value,
            Uniform::BlockSize(at) => axis(self.launch.block, at),
            Uniform::GridSize(at) => axis(self.launch.grid, at),
            Uniform::BlockIndex(at) => axis(self.block.index, at),
            Uniform::Warps => self.lanes.div_ceil(32) as u64,
            Uniform::WorkspaceHigh => self.launch.workspace >> 32,
            Uniform::WorkspaceLow => self.launch.workspace & 0xffff_ffff,
            Uniform::DynamicShared => u64::from(self.launch.dynamic_shared),
            Uniform::TotalShared => {
                u64::from(self.kernel.dynamic_shared_offset()) + u64::from(self.launch.dynamic_shared)
            }
            Uniform::Parameter { offset, bytes, signed } => self.parameter(offset, bytes, signed),
            Uniform::Global { index, offset } => {
                let base = self.launch.globals.get(index as usize).copied().unwrap_or(0);
                base.wrapping_add(offset as u64)
            }
            Uniform::DynamicStart { .. } | Uniform::Computed(_) => 0,
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

    fn lane_constant(&self, constant: LaneConstant, lane: usize) -> u32 {
        let in_warp = lane as u32 % 32;
        match constant {
            LaneConstant::ThreadIndex(axis) => self.thread_index(lane)[usize::from(axis % 3)],
            LaneConstant::LaneId => in_warp,
            LaneConstant::WarpId => lane as u32 / 32,
            LaneConstant::LaneMaskEq => 1 << in_warp,
            LaneConstant::LaneMaskLt => (1 << in_warp) - 1,
            LaneConstant::LaneMaskLe => u32::MAX >> (31 - in_warp),
            LaneConstant::LaneMaskGt => !(u32::MAX >> (31 - in_warp)),
            LaneConstant::LaneMaskGe => u32::MAX << in_warp,
        }
    }

    pub(super) fn thread_index(&self, lane: usize) -> [u32; 3] {
        let [width, height, _] = self.launch.block.map(|extent| extent.max(1));
        let lane = lane as u32;
        [lane % width, lane / width % height, lane / width / height]
    }

    /// Where and who: the current instruction, one lane, and what it accessed.
    pub(super) fn report(&self, lane: usize, access: Option<(Space, Access, u64, u64)>) -> ThreadReport {
        ThreadReport {
            kernel: self.kernel.name().to_owned(),
            block: self.block.index,
            thread: self.thread_index(lane),
            ptx_line: self.kernel.line(self.pc),
            cuda_line: self.kernel.cuda_line(self.pc).cloned(),
            access: access.map(|(space, access, address, bytes)| MemoryAccess {
                space,
                access,
                address,
                bytes: bytes as u32,
            }),
        }
    }

    pub(super) fn fault(&self, kind: FaultKind, lane: usize) -> Stop {
        Box::new(Fault { kind, at: self.report(lane, None), printed: Printed::default() })
    }

    pub(super) fn access_fault(
        &self,
        kind: FaultKind,
        space: Space,
        access: Access,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Stop {
        let at = self.report(lane, Some((space, access, address, bytes)));
        Box::new(Fault { kind, at, printed: Printed::default() })
    }
}
