//! Operations that the lanes of a warp execute together.

use crate::arithmetic::word;
use crate::convergence::{ConvergenceGroup, Next};
use crate::fault::{FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::{MAX_CHUNKS, Mask, lanes_of};
use crate::order::Order;
use virtual_gpu_ptx::instruction::{
    Operation, Predicate, ReductionTarget, ShuffleMode, Slot, Value, VoteMode,
};

/// The value that a lane receives from a lane that does not take part.
const UNDEFINED: u32 = u32::MAX;

impl Machine<'_> {
    /// Executes an operation that the named lanes of a warp execute together. A warp waits until none of these lanes is
    /// missing.
    pub(crate) fn warp_operation(
        &mut self,
        operation: &Operation,
        group: &ConvergenceGroup,
        mask: &Mask,
    ) -> Result<Next, Stop> {
        let Some(members) = operation.members() else { return Ok(Next::Follow) };
        let mut waits = self.incomplete_warps(mask, members);
        let mut threads = *mask;
        if !waits.is_empty() {
            if self.has_group_at(group.pc) {
                return Ok(Next::Join);
            }
            waits = waits.and(mask);
            threads = threads.without(&waits);
        }
        use Operation::{Elect, Match, Redux, Shuffle, Vote, WarpBarrier};
        match operation {
            WarpBarrier { .. } if self.block.shadow.is_on || self.is_observed() => {
                self.note_together(members, threads, Order::Warps);
            }
            Shuffle { .. } | Vote { .. } | Match { .. } | Redux { .. } | Elect { .. }
                if self.block.shadow.needs_exchanges() || self.is_observed() =>
            {
                self.note_together(members, threads, Order::Exchange);
            }
            _ => {}
        }
        for warp in 0..MAX_CHUNKS / 2 {
            let mut left = threads.warp(warp);
            while left != 0 {
                let together = self.lanes_with_same(members, warp, left);
                left &= !together;
                self.exchange(operation, warp, together)?;
            }
        }
        if waits.is_empty() {
            return Ok(Next::Follow);
        }
        self.set_waiting(group.pc, waits);
        Ok(Next::Leave(waits))
    }

    /// Records what the lanes of a warp that name the same members have done together.
    fn note_together(&mut self, members: Slot, mut threads: Mask, what: fn(Mask) -> Order) {
        while !threads.is_empty() {
            let mut together = Mask::NONE;
            for warp in 0..MAX_CHUNKS / 2 {
                let present = threads.warp(warp);
                if present != 0 {
                    let first = warp * 32 + present.trailing_zeros() as usize;
                    let named = self.block.files.word_of(members, first) | 1 << (first % 32);
                    together.set_warp(warp, present & named);
                }
            }
            let what = what(together);
            match what {
                Order::Exchange(_) => self.observe_exchange(&together),
                _ => self.observe_barrier(&together, &together),
            }
            self.order(what);
            threads = threads.without(&together);
        }
    }

    fn exchange(&mut self, operation: &Operation, warp: usize, present: u32) -> Result<(), Stop> {
        match *operation {
            Operation::Shuffle { mode, d, valid, a, b, c, members } => {
                self.shuffle(mode, d, valid, [a, b, c, members], warp, present)?;
            }
            Operation::Vote { mode, d, condition, .. } => {
                let yes = self.block.files.where_true(condition, &warp_mask(warp, present)).warp(warp);
                let answer = match mode {
                    VoteMode::Ballot => yes,
                    VoteMode::All => u32::from(yes == present),
                    VoteMode::Any => u32::from(yes != 0),
                    VoteMode::Uniform => u32::from(yes == present || yes == 0),
                };
                match d {
                    ReductionTarget::Word(d) => {
                        self.block.files.set_words_of_warp(d, warp, present, |_| answer)
                    }
                    ReductionTarget::Predicate(d) => {
                        let bits = if answer != 0 { u32::MAX } else { 0 };
                        self.set_predicates(d, warp, present, bits);
                    }
                }
            }
            Operation::Match { all, d, valid, a, .. } => self.match_values(all, d, valid, a, warp, present),
            Operation::Redux { op, d, a, .. } => {
                let files = &self.block.files;
                let values = lanes_of(present).map(|lane| files.word_of(a, warp * 32 + lane));
                let result = values.reduce(|a, b| word::scalar(op, a, b, 0)).unwrap_or(0);
                self.block.files.set_words_of_warp(d, warp, present, |_| result);
            }
            Operation::Elect { d, leader, .. } => {
                let lowest = present.trailing_zeros();
                if let Some(d) = d {
                    self.block.files.set_words_of_warp(d, warp, present, |_| lowest);
                }
                self.set_predicates(leader, warp, present, 1 << lowest);
            }
            Operation::StoreMatrices(ref store) => self.store_matrices(store, warp, present)?,
            Operation::TransposeMatrix { d, a, .. } => self.transpose_matrix(d, a, warp, present)?,
            Operation::LoadMatrices(ref load) => self.load_matrices(load, warp, present)?,
            Operation::MultiplyMatrices(ref product) => self.multiply_matrices(product, warp, present)?,
            Operation::LoadFragment(ref access) => self.load_fragment(access, warp, present)?,
            Operation::StoreFragment(ref access) => self.store_fragment(access, warp, present)?,
            Operation::MultiplyFragments(ref product) => self.multiply_fragments(product, warp, present)?,
            _ => {}
        }
        Ok(())
    }

    /// Executes the manual's pseudocode for `shfl`, lane by lane. Reading from a named lane that has ended is
    /// undefined; here it causes a fault.
    fn shuffle(
        &mut self,
        mode: ShuffleMode,
        d: Option<Slot>,
        valid: Option<Predicate>,
        [a, b, c, members]: [Slot; 4],
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        let ended = self.block.ended().warp(warp);
        let mut results = [UNDEFINED; 32];
        let mut in_range = 0;
        for lane in lanes_of(present) {
            let files = &self.block.files;
            let at = warp * 32 + lane;
            let (b, c) = (files.word_of(b, at) & 31, files.word_of(c, at));
            let (lane_number, segment, clamp) = (lane as u32, c >> 8 & 31, c & 31);
            let lowest = lane_number & segment;
            let highest = lowest | clamp & !segment;
            let (source, is_valid) = match mode {
                ShuffleMode::Up => {
                    let source = lane_number.wrapping_sub(b);
                    (source, source as i32 >= highest as i32)
                }
                ShuffleMode::Down => (lane_number + b, lane_number + b <= highest),
                ShuffleMode::Butterfly => (lane_number ^ b, lane_number ^ b <= highest),
                ShuffleMode::Index => {
                    let source = lowest | b & !segment;
                    (source, source <= highest)
                }
            };
            let source = if is_valid { source as usize % 32 } else { lane };
            in_range |= u32::from(is_valid) << lane;
            if present & 1 << source != 0 {
                results[lane] = files.word_of(a, warp * 32 + source);
            } else if files.word_of(members, at) & ended & 1 << source != 0 {
                let members = files.word_of(members, at);
                return Err(self.fault(FaultKind::DivergentWarp { members, present }, at));
            }
        }
        if let Some(d) = d {
            self.block.files.set_words_of_warp(d, warp, present, |lane| results[lane]);
        }
        if let Some(valid) = valid {
            self.set_predicates(valid, warp, present, in_range);
        }
        Ok(())
    }

    fn match_values(
        &mut self,
        all: bool,
        d: Slot,
        valid: Option<Predicate>,
        a: Value,
        warp: usize,
        present: u32,
    ) {
        let values: Vec<(usize, u64)> =
            lanes_of(present).map(|lane| (lane, self.value_of(a, warp * 32 + lane))).collect();
        let equal_to = |value: u64| {
            values.iter().filter(|(_, other)| *other == value).fold(0, |mask, (lane, _)| mask | 1_u32 << lane)
        };
        let mut results = [0; 32];
        for &(lane, value) in &values {
            let same = equal_to(value);
            results[lane] = if !all || same == present { same } else { 0 };
        }
        self.block.files.set_words_of_warp(d, warp, present, |lane| results[lane]);
        if let Some(valid) = valid {
            let agree = values.iter().all(|(_, value)| *value == values[0].1);
            self.set_predicates(valid, warp, present, if agree { u32::MAX } else { 0 });
        }
    }

    /// Executes `activemask`.
    pub(crate) fn active_mask(&mut self, d: Slot, mask: &Mask) {
        for warp in 0..MAX_CHUNKS / 2 {
            let present = mask.warp(warp);
            self.block.files.set_words_of_warp(d, warp, present, |_| present);
        }
    }

    fn set_predicates(&mut self, d: Predicate, warp: usize, lanes: u32, bits: u32) {
        for half in 0..2 {
            let (bits, lanes) = ((bits >> (16 * half)) as u16, (lanes >> (16 * half)) as u16);
            self.block.files.set_predicate(d, 2 * warp + half, bits, lanes);
        }
    }
}

fn warp_mask(warp: usize, lanes: u32) -> Mask {
    let mut mask = Mask::NONE;
    mask.set_warp(warp, lanes);
    mask
}
