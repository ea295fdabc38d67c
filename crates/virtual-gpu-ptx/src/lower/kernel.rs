//! Kernels: parameters, body, and the subroutines that the body calls.

use super::builder::{Lowering, Subroutine};
use super::names::Binding;
use super::subroutine::FRAME_ALIGNMENT;
use crate::instruction::{Call, Instruction, Operation, Space, SystemCall};
use crate::kernel::{Frame, Kernel, Parameter, Registers, Uniform};
use crate::resolved::ResolvedFunction;
use crate::syntax::{Variable as Declared, VariableSpace};

impl<'f, 'a> Lowering<'f, 'a> {
    /// Lowers a kernel, or a standalone function.
    pub(crate) fn kernel(&mut self, function: &'f ResolvedFunction<'a>) -> Kernel {
        self.scopes.open(true);
        let mut parameters = Vec::new();
        let mut end = 0_u64;
        for parameter in function.parameters.iter().chain(&function.returns) {
            let offset = end.next_multiple_of(u64::from(parameter.align));
            end = offset + parameter.size;
            if end > u64::from(u16::MAX) {
                self.report(parameter.line, "more than 64 KiB of parameters");
                end = 0;
            }
            let (offset, size) = (offset as u32, parameter.size as u32);
            parameters.push(Parameter { offset, size, align: parameter.align });
            if !function.is_entry {
                self.variable(parameter);
            } else if parameter.space == VariableSpace::Param {
                self.scopes.bind(parameter.name, Binding::Parameter(offset));
            } else {
                self.register(parameter);
            }
        }
        self.body(function);
        self.scopes.close();
        self.line = function.line;
        self.guard = None;
        self.emit(Operation::Exit);
        let frames = self.lower_subroutines();
        self.resolve_branches();
        self.finish(function, parameters, end as u32, frames)
    }

    fn finish(
        &mut self,
        function: &ResolvedFunction<'a>,
        parameters: Vec<Parameter>,
        bytes: u32,
        frames: Vec<Frame>,
    ) -> Kernel {
        self.remove_unused_results();
        let dynamic_shared_offset = self.shared_bytes.next_multiple_of(self.dynamic_align);
        let mut uniform_words = std::mem::take(&mut self.uniform_words.values);
        let mut uniform_longs = std::mem::take(&mut self.uniform_longs.values);
        for uniform in uniform_words.iter_mut().chain(&mut uniform_longs) {
            if let Uniform::DynamicStart { offset } = *uniform {
                *uniform = Uniform::Shared { offset: i64::from(dynamic_shared_offset).wrapping_add(offset) };
            }
        }
        Kernel {
            name: function.name.to_owned(),
            parameters,
            parameter_bytes: bytes,
            shared_bytes: self.shared_bytes,
            dynamic_shared_offset,
            shared_variables: std::mem::take(&mut self.shared_variables),
            shared_unit: self.code.iter().filter_map(shared_bytes).min().unwrap_or(4),
            has_partial_barriers: self.code.iter().any(orders_parts),
            uses_heap: self.code.iter().any(uses_heap),
            local_bytes: self.local_bytes.next_multiple_of(if frames.is_empty() {
                8
            } else {
                FRAME_ALIGNMENT
            }) as u32,
            max_threads: function.max_threads,
            required_threads: function.required_threads,
            cluster: function.cluster,
            code: std::mem::take(&mut self.code),
            lines: std::mem::take(&mut self.lines),
            locations: std::mem::take(&mut self.locations),
            cuda_lines: std::mem::take(&mut self.cuda_lines),
            registers: Registers {
                words: self.counts.words,
                longs: self.counts.longs,
                predicates: self.counts.predicates,
                uniform_words,
                uniform_longs,
                thread_constants: std::mem::take(&mut self.thread_constants),
            },
            frames,
        }
    }

    /// Removes the destinations of atomics whose results are never read, as `ptxas` does: they become `red`.
    fn remove_unused_results(&mut self) {
        for instruction in &mut self.code {
            if let Operation::Atomic(atomic) = &mut instruction.operation {
                atomic.destination = atomic.destination.filter(|&result| !self.mentions.is_only(result));
            }
        }
    }

    /// Lowers the called subroutines and the subroutines that they call.
    fn lower_subroutines(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(&Subroutine { function, entry }) = self.subroutines.get(frames.len())
            && !self.gave_up
        {
            frames.push(self.subroutine(function, entry));
        }
        frames
    }

    fn subroutine(&mut self, function: &'f ResolvedFunction<'a>, entry: u32) -> Frame {
        self.place_label(entry);
        let (words, longs, predicates) = (self.counts.words, self.counts.longs, self.counts.predicates);
        let base = self.new_long();
        self.frame = Some((base.index() as u32, 0));
        self.scopes.open(true);
        let declare = |lowering: &mut Self, formal: &Declared<'a>| {
            lowering.variable(formal);
            match lowering.find(formal.name) {
                Some(Binding::Framed(_, offset)) => (offset, formal.size as u32),
                _ => (0, 0),
            }
        };
        let results = function.returns.iter().map(|formal| declare(self, formal)).collect();
        let parameters = function.parameters.iter().map(|formal| declare(self, formal)).collect();
        let end = self.new_label();
        self.return_label = Some(end);
        self.body(function);
        self.return_label = None;
        self.scopes.close();
        self.line = function.line;
        self.guard = None;
        self.place_label(end);
        self.emit(Operation::Return);
        let variables = self.frame.take().map_or(0, |(_, bytes)| bytes);
        Frame {
            words: words..self.counts.words,
            longs: longs..self.counts.longs,
            predicates: predicates..self.counts.predicates,
            base,
            bytes: variables.next_multiple_of(FRAME_ALIGNMENT).max(FRAME_ALIGNMENT) as u32,
            parameters,
            results,
        }
    }

    /// Replaces label indices with instruction indices.
    fn resolve_branches(&mut self) {
        for instruction in &mut self.code {
            if let Operation::Branch { target } | Operation::Call(Call { target, .. }) =
                &mut instruction.operation
            {
                *target = self.labels[*target as usize];
            }
        }
    }
}

/// Returns the size of an instruction's elements in bytes if it may access shared memory.
fn shared_bytes(instruction: &Instruction) -> Option<u8> {
    let (space, bytes) = match &instruction.operation {
        Operation::Load(access) | Operation::Store(access) => (access.space, access.bytes),
        Operation::Atomic(atomic) => (atomic.space, atomic.kind.bytes()),
        Operation::CopyToShared { bytes, .. } => (Space::Shared, *bytes),
        Operation::LoadMatrices(load) => (load.space, 16),
        Operation::StoreMatrices(store) => (store.space, 16),
        Operation::BulkCopy(_) | Operation::TensorCopy(_) => (Space::Shared, 8),
        Operation::BulkReduction(reduction) => (Space::Shared, reduction.kind.bytes()),
        Operation::StoreAsync(store) => (Space::Shared, store.bytes),
        Operation::Mbarrier(mbarrier) => (mbarrier.space, 8),
        Operation::LoadFragment(access) | Operation::StoreFragment(access) => {
            (access.space, access.fragment.piece())
        }
        _ => return None,
    };
    matches!(space, Space::Shared | Space::Generic).then_some(bytes)
}

/// Returns whether an instruction allocates or frees memory.
fn uses_heap(instruction: &Instruction) -> bool {
    let Operation::System(call) = &instruction.operation else { return false };
    matches!(**call, SystemCall::Allocate { .. } | SystemCall::Free { .. })
}

/// Returns whether an instruction synchronizes some but not all threads of a block, beyond a single warp.
fn orders_parts(instruction: &Instruction) -> bool {
    match &instruction.operation {
        Operation::Barrier(barrier) => barrier.threads.is_some() || barrier.arrives_only,
        Operation::Fence(_) | Operation::Mbarrier(_) | Operation::ClusterBarrier(_) => true,
        _ => false,
    }
}
