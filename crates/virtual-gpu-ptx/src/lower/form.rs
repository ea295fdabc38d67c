//! Chooses the lowering of each form.

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::Operation;
use crate::resolved::Form;
use crate::syntax::Written;

impl<'a> Lowering<'_, 'a> {
    /// Lowers one instruction, except for calls and returns, into one or more operations.
    pub(crate) fn form(&mut self, written: &Written<'a>, form: &Form<'a>) -> Lowered {
        // Manual, "Special Registers": they are accessed through `mov` or `cvt`.
        self.reads_special_registers = match form {
            Form::Move { .. } | Form::ConvertInteger { .. } => true,
            Form::Convert { to, .. } => !to.is_float(),
            _ => false,
        };
        match form {
            Form::Word { op, kind, d, sources } => self.word_operation(*op, *kind, d, sources),
            Form::Half { op, kind, d, sources } => self.half_operation(*op, *kind, d, sources),
            Form::Long { op, kind, d, sources } => self.long_operation(*op, *kind, d, sources),
            Form::Narrow { op, kind, d, a } => self.narrow(*op, *kind, d, a),
            Form::WideProduct { kind, d, sources } => self.wide_product(*kind, d, sources),
            Form::Chain { first, second, kind, operands } => self.chain([*first, *second], *kind, operands),
            Form::Pair { op, relu, operands } => self.pair(*op, *relu, operands),
            Form::Carry { op, kind, reads, writes, d, sources } => {
                self.carry_operation(*op, *kind, [*reads, *writes], d, sources)
            }
            Form::Float { op, float_type, kind, mode, d, sources } => {
                self.float(*op, *float_type, *kind, *mode, d, sources)
            }
            Form::TestNumber { test, kind, operands } => self.test_number(*test, *kind, operands),
            Form::Shift { left, kind, operands } => self.shift(*left, *kind, operands),
            Form::Extract { kind, operands } => self.extract(*kind, operands),
            Form::Insert { kind, operands } => self.insert(*kind, operands),
            Form::Logic { op, negates, d, a, b } => self.logic(*op, *negates, d, [a, b]),
            Form::Compare(compare) => self.compare(compare),
            Form::Select { kind, operands } => self.select(*kind, operands),
            Form::SelectBySign { kind, by, compare_as, operands } => {
                self.select_by_sign(*kind, *by, *compare_as, operands)
            }
            Form::Convert { conversion, from, to, operands } => {
                self.convert(*conversion, *from, *to, operands)
            }
            Form::ConvertInteger { kind, from, to, operands } => {
                self.convert_integer(*kind, *from, *to, operands)
            }
            Form::ConvertToPair { to, rounding, mode, operands } => {
                self.convert_to_pair(*to, *rounding, *mode, operands)
            }
            Form::ConvertToFp8 { to, relu, d, sources } => self.convert_to_fp8(*to, *relu, d, sources),
            Form::ConvertFromFp8 { from, relu, operands } => self.convert_from_fp8(*from, *relu, operands),
            Form::Move { kind, d, a } => self.move_(*kind, d, a),
            Form::Unpack { kind, parts, a } => self.unpack(*kind, parts, a),
            Form::Pack { d, parts } => self.pack(d, parts),
            Form::ConvertAddress { base, kind, operands } => self.convert_address(*base, *kind, operands),
            Form::IsSpace { space, in_cluster, operands } => self.is_space(*space, *in_cluster, operands),
            Form::MapAddress { kind, is_generic, operands } => self.map_address(*kind, *is_generic, operands),
            Form::BlockOfAddress { kind, operands } => self.block_of_address(*kind, operands),
            Form::ClusterBarrier(barrier) => self.emitted(Operation::ClusterBarrier(*barrier)),
            Form::StoreAsync(store) => self.store_async(written, store),
            Form::Load { access, values, address } => self.load(*access, values, address),
            Form::Store { access, values, address } => self.store(written, *access, values, address),
            Form::Atomic(atomic) => self.atomic(atomic),
            Form::AtomicVector(atomic) => self.atomic_vector(atomic),
            Form::CopyAsync { to, from, bytes, present } => {
                self.copy_async(written, [to, from, present], *bytes)
            }
            Form::BulkCopy(copy) => self.bulk_copy(written, copy),
            Form::TensorCopy(copy) => self.tensor_copy(written, copy),
            Form::BulkReduction { to, from, bytes, mbarrier, op, kind, policy } => {
                self.check_policy(policy.as_ref())?;
                self.bulk_reduction(written, [to, from, bytes], mbarrier.as_ref(), *op, *kind)
            }
            Form::FetchTexture(fetch) => self.fetch_texture(fetch),
            Form::QueryObject { is_surface, name, property, level, d } => {
                self.query_object(*is_surface, name, *property, level.as_ref(), d)
            }
            Form::AccessSurface(access) => self.access_surface(access),
            Form::CommitCopies => self.emitted(Operation::CommitCopies),
            Form::WaitForCopies { pending } => self.emitted(Operation::WaitForCopies { pending: *pending }),
            Form::WaitForAllCopies => {
                self.emit(Operation::CommitCopies);
                self.emitted(Operation::WaitForCopies { pending: 0 })
            }
            Form::Nothing => self.emitted(Operation::Nothing),
            Form::Fence(fence) => self.emitted(Operation::Fence(*fence)),
            Form::Exit | Form::Return => self.emitted(Operation::Exit),
            Form::Trap => self.emitted(Operation::Trap),
            Form::Call(_) => Ok(()),
            Form::Branch { target } => self.branch(target),
            Form::IndexedBranch { index, list } => self.indexed_branch(index, list),
            Form::Barrier { id, threads, arrives_only, aligned, reduction } => {
                self.barrier([Some(id), threads.as_ref()], *arrives_only, *aligned, reduction.as_ref())
            }
            Form::Mbarrier { op, space, address } => self.mbarrier(written, op, *space, address),
            Form::WarpBarrier { members } => self.warp_barrier(members),
            Form::Sleep { time } => self.sleep(time),
            Form::Shuffle { mode, d, sources } => self.shuffle(*mode, d, sources),
            Form::Vote { mode, operands } => self.vote(*mode, operands),
            Form::Match { all, kind, operands } => self.match_lanes(*all, *kind, operands),
            Form::Redux { op, operands } => self.redux(*op, operands),
            Form::ActiveMask { d } => self.active_mask(d),
            Form::Elect { operands } => self.elect(operands),
            Form::StoreMatrices { space, transposed, a, address } => {
                self.store_matrices(written, *space, *transposed, a, address)
            }
            Form::TransposeMatrix { operands } => self.transpose_matrix(operands),
            Form::LoadMatrices { space, transposed, d, address } => {
                self.load_matrices(written, *space, *transposed, d, address)
            }
            Form::MultiplyMatrices { elements, accumulator, fragments } => {
                self.multiply_matrices(*elements, *accumulator, fragments)
            }
            Form::AccessFragment { fragment, is_store, by_columns, space, address, stride } => {
                self.access_fragment(written, fragment, [*is_store, *by_columns], *space, [address, stride])
            }
            Form::MultiplyFragments { fragments, rounding, sum } => {
                self.multiply_fragments(fragments, *rounding, *sum)
            }
        }
    }

    fn emitted(&mut self, operation: Operation) -> Lowered {
        self.emit(operation);
        Ok(())
    }
}
