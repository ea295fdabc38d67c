//! Runs kernels, without the engine's lock, on whichever thread finds that their turn has come.

use super::Engine;
use super::Failure;
use super::kernel_report::Side;
use super::kernel_report::assertion_lines;
use super::kernel_report::device_race_help;
use super::kernel_report::device_race_report;
use super::kernel_report::fault_report;
use super::kernel_report::race_report;
use super::kernel_report::status_of;
use super::kernel_report::unwritten_report;
use super::launch::KernelLaunch;
use super::run::Turn;
use super::together::{Place, SharedMemory};
use super::touched::Done;
use super::touched::Outcome;
use super::touched::Touched;
use super::transfer::{gone_report, owner};
use crate::config::Checks;
use crate::device::MULTIPROCESSORS;
use crate::order::Touch;
use crate::report::{Report, size};
use crate::time::{Cost, Ticket, Traffic};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::memory::{AllocationId, BadAddress, DeviceMemory, HeapOwner};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_machine::{
    Access, Consistency, DeviceRace, Division, Execution, Fault, FaultKind, KernelHeap, Launch, Together,
};

/// The maximum number of instructions that all threads of a launch may execute in total, so that an endless kernel is
/// stopped after about a minute on one core.
const INSTRUCTION_LIMIT: u64 = 1 << 36;

/// The maximum number of instructions that one thread may execute: about ten seconds on one core for a thread that runs
/// alone.
const THREAD_LIMIT: u64 = 1 << 28;

/// A kernel that has run or has failed.
struct Ran {
    outcome: Result<Execution, Box<Fault>>,
    touched: Vec<Touched>,
    /// What it has freed of what other launches have allocated.
    freed: Vec<(u64, AllocationId)>,
    /// A report about a read of unwritten bytes, or about memory that another process has freed.
    unwritten: Option<Report>,
}

impl Engine {
    pub(super) fn run_kernel(&self, launch: &KernelLaunch, turn: &Turn) -> Outcome {
        let ran = self.run_in_memory(launch, turn)?;
        self.conclude(ran, launch, turn, Vec::new())
    }

    /// Runs a kernel that shares memory with other GPUs. Returns the other launches that it has learned of, too.
    pub(super) fn run_kernel_together(
        &self,
        launch: &KernelLaunch,
        turn: &Turn,
        place: &Place,
        mut shared: SharedMemory<'_>,
    ) -> (Outcome, Vec<usize>) {
        let (mut memory, mut consistency) = (DeviceMemory::new(0..0, 0), Consistency::default());
        shared.lock(&mut memory, &mut consistency);
        place.begin(launch, turn.device, &mut consistency);
        let workspace = match launch.is_cooperative.then(|| new_workspace(&mut memory)).transpose() {
            Ok(workspace) => workspace,
            Err(failure) => {
                shared.unlock(&mut memory, &mut consistency);
                return (Err(failure), Vec::new());
            }
        };
        let to_run = self.to_run(launch, turn, workspace);
        let observes = self.state().shares_memory(launch.context);
        let together = Together::new(&mut consistency, place.number, Box::new(&mut shared), observes);
        let outcome = virtual_gpu_machine::run_together(&launch.kernel, &to_run, &mut memory, together);
        let learned = consistency.end(place.number);
        let ran = self.ran(outcome, &mut memory, turn, workspace);
        shared.unlock(&mut memory, &mut consistency);
        let outcome = match shared.ends.take() {
            Some(failure) => Err(failure),
            None => self.conclude(ran, launch, turn, self.tickets_of(&learned)),
        };
        (outcome, learned)
    }

    /// Prints and reports what a kernel did, and computes its cost. `partners` are the launches that it has waited for while
    /// they ran.
    fn conclude(&self, ran: Ran, launch: &KernelLaunch, turn: &Turn, partners: Vec<Ticket>) -> Outcome {
        let Ran { mut outcome, touched, freed, unwritten } = ran;
        self.freed_by_kernel(turn.device, freed);
        let printed = match &mut outcome {
            Ok(execution) => std::mem::take(&mut execution.printed),
            Err(fault) => std::mem::take(&mut fault.printed),
        };
        if !printed.is_empty() {
            self.state().add_printed(launch.context, printed, launch.print_buffer);
        }
        let call_site = &turn.call_site;
        let execution = match outcome {
            Ok(execution) => execution,
            Err(fault) => {
                if let FaultKind::Assert(assertion) = &fault.kind {
                    crate::report::print(assertion_lines(assertion, fault.at.block).trim_end());
                }
                let report = fault_report(&fault, call_site, |report, address| self.whose(report, address));
                return Err(Failure::announce(status_of(&fault), &report));
            }
        };
        let race = execution.race.as_ref().map(|race| race_report(race, call_site));
        let device_race = execution.device_race.as_ref().map(|race| self.device_race_report(race));
        let unnoticed = execution.unnoticed.as_ref();
        let unnoticed = unnoticed.map(|fault| fault_report(fault, call_site, |report, _| report));
        for report in [unnoticed, race, device_race, unwritten].into_iter().flatten() {
            let failure = Failure::of_problem(CudaStatus::LaunchFailed, &report, self.config().checks);
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        let [x, y, z] = launch.shape.grid.map(u64::from);
        let bytes_of = |is_own: bool| -> u64 {
            let is_near = |touched: &&Touched| {
                (touched.device == turn.device || touched.device == self.managed()) == is_own
            };
            touched.iter().filter(is_near).flat_map(|touched| &touched.touches).map(Touch::bytes).sum()
        };
        let cost = Cost::Kernel {
            blocks: x * y * z,
            resident: launch.resident / u64::from(MULTIPROCESSORS),
            instructions: execution.instructions,
            traffic: Traffic {
                memory: bytes_of(true),
                l2: execution.bytes_of_blocks,
                l1: execution.bytes_read + execution.bytes_written,
                shared: execution.shared_bytes,
                link: bytes_of(false),
            },
            longest_thread: execution.longest_thread,
            partners,
        };
        Ok(Done { touched, cost })
    }

    /// Returns the machine's arguments for a launch.
    fn to_run<'l>(&self, launch: &'l KernelLaunch, turn: &'l Turn, workspace: Option<u64>) -> Launch<'l> {
        Launch {
            grid: launch.shape.grid,
            block: launch.shape.block,
            cluster: launch.cluster.unwrap_or([1; 3]),
            is_explicit_cluster: launch.cluster.is_some(),
            dynamic_shared: launch.shape.dynamic_shared,
            parameters: &launch.parameters,
            globals: &launch.globals,
            objects: &launch.objects,
            start_ns: turn.start_ns,
            division: Division::among_idle_cores(),
            resident: launch.resident,
            workspace: workspace.unwrap_or(0),
            stack: launch.stack,
            heap: KernelHeap {
                owner: HeapOwner(launch.context.0),
                limit: launch.heap,
                launched: Some(&turn.call_site),
            },
            print_buffer: launch.print_buffer,
            watch_shared: self.config().checks != Checks::Off,
            is_lenient: self.config().checks != Checks::Error,
            instruction_limit: INSTRUCTION_LIMIT,
            thread_limit: THREAD_LIMIT,
        }
    }

    /// Runs a kernel on its GPU's memory and on managed memory, both of which stay locked while it runs.
    fn run_in_memory(&self, launch: &KernelLaunch, turn: &Turn) -> Result<Ran, Failure> {
        let mut memory = self.memory_as_of(turn.device, turn.sequence);
        let workspace = if launch.is_cooperative { Some(new_workspace(&mut memory)?) } else { None };
        let to_run = self.to_run(launch, turn, workspace);
        // Managed memory is locked after the GPU's memory, so that two kernels can't deadlock.
        let mut managed =
            Some(self.memory_as_of(self.managed(), turn.sequence)).filter(|managed| !managed.is_empty());
        if let Some(managed) = &mut managed {
            memory.borrow(managed, |_| true);
        }
        let outcome = virtual_gpu_machine::run(&launch.kernel, &to_run, &mut memory);
        let ran = self.ran(outcome, &mut memory, turn, workspace);
        if let Some(managed) = &mut managed {
            memory.give_back(managed);
        }
        Ok(ran)
    }

    /// Collects what a kernel did, while its memory is still accessible.
    fn ran(
        &self,
        mut outcome: Result<Execution, Box<Fault>>,
        memory: &mut DeviceMemory,
        turn: &Turn,
        workspace: Option<u64>,
    ) -> Ran {
        let all = outcome.iter().flat_map(|done| &done.touched);
        let used = all.clone().filter_map(|it| memory.range_of_kernel(it.base, 0).ok());
        let gone = used.map(|(allocation, _)| allocation).find(|allocation| allocation.is_gone());
        let gone = gone.map(|it| gone_report("a kernel", it).at("launched", &turn.call_site));
        let is_freed = |base: u64| memory.range_of_kernel(base, 0).is_err();
        let freed = all.filter(|it| it.allocation.is_of_kernels() && is_freed(it.base));
        let freed = freed.map(|it| (it.base, it.allocation)).collect();
        let touched =
            outcome.as_mut().map(|done| self.touched(turn.device, memory, std::mem::take(&mut done.touched)));
        let touched = touched.unwrap_or_default();
        let unwritten = outcome.as_ref().ok().and_then(|done| done.unwritten.as_ref());
        let unwritten = unwritten.map(|read| unwritten_report(read, memory, &turn.call_site));
        let unwritten = gone.or(unwritten);
        if let Some(workspace) = workspace {
            let _ = memory.free(workspace, CallSite::unknown());
        }
        Ran { outcome, touched, freed, unwritten }
    }

    /// Returns the report for accesses by threads of two launches, or of two blocks, that nothing orders.
    fn device_race_report(&self, race: &DeviceRace) -> Report {
        let [earlier, later] = [&race.earlier, &race.later].map(|(launch, at)| {
            let (gpu, launched) = self.launch_site(*launch).unwrap_or((0, CallSite::unknown()));
            Side { gpu, launched, at }
        });
        // Which access came first depends on the threads that run the kernels.
        let sides = if earlier.gpu > later.gpu { [&later, &earlier] } else { [&earlier, &later] };
        let report = device_race_report(sides, race.earlier.0 == race.later.0);
        let allocation = self.device_of(race.at.0).and_then(|gpu| {
            let memory = self.memory(gpu);
            let (allocation, _) = memory.range_of_kernel(race.at.0, 1).ok()?;
            Some((allocation.size(), allocation.call_site().clone(), self.name_of(gpu)))
        });
        let report = match &allocation {
            Some((bytes, made_at, place)) => {
                let byte = race.at.1;
                report.before_at(
                    format!("byte {byte} of the buffer of {} {place} allocated here", size(*bytes)),
                    made_at,
                )
            }
            None => report,
        };
        device_race_help(report, race, earlier.gpu != later.gpu)
    }

    /// Returns what a kernel touched, by allocation.
    fn touched(
        &self,
        device: usize,
        memory: &DeviceMemory,
        all: Vec<virtual_gpu_machine::Touched>,
    ) -> Vec<Touched> {
        let mut by_allocation: Vec<Touched> = Vec::new();
        let mut places: Map<(usize, AllocationId), usize> = Map::default();
        for virtual_gpu_machine::Touched { allocation, base, ranges, access } in all {
            let touch = Touch {
                ranges,
                reads: access != Access::Write,
                writes: access != Access::Read,
                atomic: access == Access::Atomic,
            };
            let of = match self.device_of(base) {
                _ if allocation.is_managed() => self.managed(),
                Some(owner) => owner,
                None => device,
            };
            match places.get(&(of, allocation)) {
                Some(&place) => by_allocation[place].touches.push(touch),
                None => {
                    let Some((size, call_site)) = memory.recall(base, allocation) else { continue };
                    places.insert((of, allocation), by_allocation.len());
                    let touches = vec![touch];
                    by_allocation.push(Touched { device: of, allocation, size, call_site, touches });
                }
            }
        }
        by_allocation
    }

    /// Adds the owner of an address that a kernel used and that is not in its own GPU's memory.
    fn whose(&self, report: Report, address: u64) -> Report {
        if self.is_reservable(address) && self.device_of(address).is_none() {
            return self.why_inaccessible(report, address);
        }
        let Some(device) = self.device_of(address).filter(|&device| device != self.managed()) else {
            return report.fact(format!("{address:#x} is not in any GPU buffer: is it a host pointer?"));
        };
        let mut pooled = false;
        let report = match self.memory(device).range(address, 1) {
            Ok((allocation, _)) => {
                pooled = allocation.is_pooled();
                report.before_at(
                    format!(
                        "it is in the buffer of {} on GPU {device} allocated here",
                        size(allocation.size())
                    ),
                    allocation.call_site(),
                )
            }
            Err(bad @ BadAddress::OfKernels { .. }) => return owner(report, &bad, address, device),
            Err(_) => report.fact(format!("{address:#x} is an address on GPU {device}")),
        };
        let allow = match pooled {
            true if self.is_reservable(address) => "cuMemSetAccess",
            true => "cuMemPoolSetAccess",
            false => "cuCtxEnablePeerAccess",
        };
        report.help(format!(
            "a kernel can use only its own GPU's memory: copy the data there first, or let the kernel's GPU access this memory ({allow})"
        ))
    }
}

/// Allocates what `cooperative_groups` calls `grid_workspace`: its size, and the grid's barrier, which starts at 0.
fn new_workspace(memory: &mut DeviceMemory) -> Result<u64, Failure> {
    const SIZE: u64 = 8;
    let no_room = || {
        let report = Report::new("no room for a cooperative launch's barrier");
        Failure::announce(CudaStatus::OutOfMemory, &report)
    };
    let address = memory.allocate(SIZE, CallSite::unknown()).map_err(|_| no_room())?;
    if let Ok((allocation, _)) = memory.range_mut(address, SIZE) {
        allocation.bytes_mut()[..4].copy_from_slice(&(SIZE as u32).to_le_bytes());
        allocation.mark_written(0..SIZE);
    }
    Ok(address)
}
