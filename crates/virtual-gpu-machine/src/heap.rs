//! `malloc` and `free` in kernels ("CUDA C++ Programming Guide", dynamic global memory allocation and operations).

use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::memory::touched::Touched;
use virtual_gpu_core::source_location::{CallSite, SourceLine};
use virtual_gpu_ptx::instruction::{Address, Space};

impl Machine<'_> {
    /// Executes one thread's `malloc`. The result is null if the heap has no room, or if the alignment is not a power
    /// of two.
    pub(crate) fn allocate(
        &mut self,
        thread: usize,
        size: Address,
        alignment: Option<Address>,
        result: Address,
    ) -> Result<(), Stop> {
        let size = self.local_value(thread, size, 8)?;
        let alignment = match alignment {
            Some(alignment) => self.local_value(thread, alignment, 8)?,
            None => 1,
        };
        let (heap, line) = (self.launch.heap, self.current_line());
        let address = match self.memory.whole() {
            Some(memory) if alignment.is_power_of_two() => {
                memory.allocate_in_heap(heap.owner, size, alignment, heap.limit, line).unwrap_or(0)
            }
            _ => 0,
        };
        let result = self.address_of(result, thread);
        self.write_bytes(Space::Local, Kind::Write, thread, result, &address.to_le_bytes())
    }

    /// Executes one thread's `free`. Null is ignored.
    pub(crate) fn free(&mut self, thread: usize, memory: Address) -> Result<(), Stop> {
        let address = self.local_value(thread, memory, 8)?;
        if address == 0 {
            return Ok(());
        }
        let line = self.current_line();
        let Some(memory) = self.memory.whole() else { return Ok(()) };
        let freed = memory.free_in_heap(self.launch.heap.owner, address, line);
        let freed =
            freed.map_err(|why| self.fault(FaultKind::BadFree { address, why: Box::new(why) }, thread))?;
        self.record.forget(freed.slot);
        // Another launch may access the memory at the same time, unless this one has allocated it.
        if freed.id < self.first_own && freed.size > 0 {
            let ranges = std::iter::once(0..freed.size).collect();
            self.touched.push(Touched { allocation: freed.id, base: address, ranges, access: Kind::Write });
        }
        Ok(())
    }

    /// Returns the kernel's line that is being executed; if the PTX does not record it, that of the launch.
    fn current_line(&mut self) -> CallSite {
        if let Some((pc, line)) = &self.last_line
            && *pc == self.pc
        {
            return line.clone();
        }
        let line = match self.kernel.cuda_line(self.pc) {
            Some(line) => CallSite::in_kernel(SourceLine::of_kernel(&line.file, line.line)),
            None => self.launch.heap.launched.cloned().unwrap_or_default(),
        };
        self.last_line = Some((self.pc, line.clone()));
        line
    }
}
