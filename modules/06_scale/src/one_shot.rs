//! One-shot all-reduce: one kernel, in which each rank reads the data of all ranks from their GPUs' memory.
//!
//! For a few kilobytes, it takes less time than NCCL's all-reduce, which is mostly latency there.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg,
};
use cudarc::nccl::Comm;
use cudarc::nvrtc::Ptx;
use lab::{PeerMemory, Readable, enable_peer_access};

/// The number of threads in a block, and the largest world size.
pub const THREADS: usize = 128;
/// The number of blocks. They are few, because all blocks of all ranks must run at the same time.
pub const BLOCKS: usize = 4;

/// Returns the PTX with which a thread signals one peer.
///
/// - `%there` has the address of a flag on the peer's GPU. Only this thread writes it, and it is 0 at first.
/// - `%round` has the number of the round.
pub fn signal() -> &'static str {
    // ANCHOR: signal
    // Set the peer's flag to the number of the round:
    // 1. a thread on another GPU that acquires the flag then sees all that this thread has written or seen before;
    // 2. no register changes.
    todo!("Set the peer's flag to the number of the round")
    // ANCHOR_END: signal
}

/// Returns the PTX with which a thread waits for one peer's signal.
///
/// - `%here` has the address of the flag on this GPU that the peer's thread sets.
/// - `%round` has the number of the round.
/// - `%seen`, a `.u32`, and `%again`, a `.pred`, are free.
pub fn wait() -> &'static str {
    // ANCHOR: wait
    // Wait until the peer has signaled this round:
    // 1. the peer may already be one round ahead;
    // 2. afterward, this thread sees all that the peer's thread, on another GPU, had written or seen before its signal.
    todo!("Wait until the peer has signaled this round")
    // ANCHOR_END: wait
}

/// The kernel. A thread handles the elements `%thread`, `%thread + %threads`, and so on. `%local` is its number in
/// its block.
const KERNEL: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry one_shot(
    .param .u64 ranks, .param .u64 input, .param .u64 output,
    .param .u32 rank, .param .u32 world_size, .param .u32 n, .param .u32 first, .param .u32 round)
{
    .reg .u64 %ranks, %input, %output, %own, %data, %at, %here, %there;
    .reg .u32 %rank, %world_size, %n, %first, %round, %peer, %seen;
    .reg .u32 %local, %block, %size, %thread, %threads, %index, %flag;
    .reg .f32 %value, %sum;
    .reg .pred %done, %again;
    ld.param.u64 %ranks, [ranks];
    ld.param.u64 %input, [input];
    ld.param.u64 %output, [output];
    ld.param.u32 %rank, [rank];
    ld.param.u32 %world_size, [world_size];
    ld.param.u32 %n, [n];
    ld.param.u32 %first, [first];
    ld.param.u32 %round, [round];
    mov.u32 %local, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %threads, %nctaid.x;
    mul.lo.u32 %threads, %threads, %size;
    mad.lo.u32 %thread, %block, %size, %local;

    // Copy the input to this rank's own memory, from element `first` on.
    mad.wide.u32 %at, %rank, 24, %ranks;
    ld.global.u64 %own, [%at + 8];
    mad.wide.u32 %own, %first, 4, %own;
    mov.u32 %index, %thread;
COPY:
    setp.ge.u32 %done, %index, %n;
    @%done bra COPIED;
    mad.wide.u32 %at, %index, 4, %input;
    ld.global.f32 %value, [%at];
    mad.wide.u32 %at, %index, 4, %own;
    st.global.f32 [%at], %value;
    add.u32 %index, %index, %threads;
    bra COPY;
COPIED:

    // In each block, thread p signals rank p, and waits for it. A barrier includes the block's other threads: a
    // release covers what they have written before it, and after it, they see what thread p has acquired.
    bar.sync 0;
    setp.ge.u32 %done, %local, %world_size;
    @%done bra MET;
    mad.wide.u32 %at, %local, 24, %ranks;
    ld.global.u64 %there, [%at + 16];
    mad.lo.u32 %flag, %block, %world_size, %rank;
    mad.wide.u32 %there, %flag, 4, %there;
    mad.wide.u32 %at, %rank, 24, %ranks;
    ld.global.u64 %here, [%at + 16];
    mad.lo.u32 %flag, %block, %world_size, %local;
    mad.wide.u32 %here, %flag, 4, %here;
    { SIGNAL }
    { WAIT }
MET:
    bar.sync 0;

    // Sum the data of all ranks, in rank order.
    mov.u32 %index, %thread;
SUM:
    setp.ge.u32 %done, %index, %n;
    @%done bra SUMMED;
    mov.u32 %peer, 0;
    mov.f32 %sum, 0f00000000;
NEXT:
    mad.wide.u32 %at, %peer, 24, %ranks;
    ld.global.u64 %data, [%at + 8];
    mad.wide.u32 %data, %first, 4, %data;
    mad.wide.u32 %at, %index, 4, %data;
    ld.global.f32 %value, [%at];
    add.f32 %sum, %sum, %value;
    add.u32 %peer, %peer, 1;
    setp.lt.u32 %again, %peer, %world_size;
    @%again bra NEXT;
    mad.wide.u32 %at, %index, 4, %output;
    st.global.f32 [%at], %sum;
    add.u32 %index, %index, %threads;
    bra SUM;
SUMMED:
    ret;
}
";

/// Returns the kernel, with the signal and the wait.
pub fn kernel() -> String {
    KERNEL.replace("SIGNAL", signal()).replace("WAIT", wait())
}

/// One rank's part of a one-shot all-reduce.
pub struct OneShot {
    /// The number of the last round, or 0 before the first one.
    pub round: u32,
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    /// Room for the data of two rounds, with `capacity` elements each, and the flags.
    _memory: [PeerMemory; 2],
    /// For each rank, in rank order: its GPU, and the addresses of its data and its flags.
    ranks: CudaSlice<u64>,
    rank: usize,
    world_size: usize,
    capacity: usize,
}

impl OneShot {
    /// Prepares sums of up to `capacity` elements. Every rank must call it, with the same capacity.
    ///
    /// Drop it only after all ranks have done their last sum, because a peer's kernel may still read this rank's
    /// memory.
    ///
    /// # Errors
    /// Fails if the GPUs can't access each other's memory. Returns any error from NCCL or the driver.
    pub fn new(comm: &Comm, capacity: usize) -> anyhow::Result<Self> {
        let (stream, world_size) = (comm.stream(), comm.world_size());
        ensure!(world_size <= THREADS, "{world_size} ranks, but at most {THREADS} are possible");
        let module = stream.context().load_module(Ptx::from_src(kernel()))?;
        let kernel = module.load_function("one_shot")?;
        let data = PeerMemory::zeroed(&stream, 2 * capacity)?;
        let flags = PeerMemory::zeroed(&stream, BLOCKS * world_size)?;
        let ranks = connect(comm, &data, &flags)?;
        let (rank, _memory) = (comm.rank(), [data, flags]);
        Ok(Self { round: 0, stream, kernel, _memory, ranks, rank, world_size, capacity })
    }

    /// Sums the ranks' inputs, and writes the sum to `output` on every rank. Every rank must call it, with buffers of
    /// the same length. Returns without waiting for the GPU.
    ///
    /// # Errors
    /// Fails if the buffers are longer than the capacity. Returns any error from the driver.
    pub fn all_reduce(&mut self, input: &CudaView<f32>, output: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
        // ANCHOR: all_reduce
        // Launch one round:
        // 1. its number is the same on all ranks, and larger than that of the last round;
        // 2. `launch` copies the input to the data from element `first` on, and a peer may still read what the last
        //    round has copied.
        todo!("Launch one round")
        // ANCHOR_END: all_reduce
    }

    /// Launches the kernel.
    fn launch(
        &self,
        round: u32,
        first: usize,
        input: &CudaView<f32>,
        output: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        let n = input.len();
        ensure!(round > 0, "round 0 is over before the first signal, because the flags are 0 at first");
        ensure!(n == output.len(), "the input has {n} elements, but the output has {}", output.len());
        ensure!(n <= self.capacity, "{n} elements, but there is room for {}", self.capacity);
        let [rank, world_size, len, first] = [self.rank, self.world_size, n, first].map(|value| value as u32);
        // In each round, each block signals once, also if it has no elements.
        let shape = LaunchConfig {
            grid_dim: (BLOCKS as u32, 1, 1),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&self.ranks).arg(input).arg(output);
        launch.arg(&rank).arg(&world_size).arg(&len).arg(&first).arg(&round);
        // SAFETY: the arguments are those of the kernel, and the buffers have the elements that it accesses.
        unsafe { launch.launch(shape) }?;
        Ok(())
    }
}

/// Exchanges the addresses of all ranks, and lets this rank's kernels access them. Every rank must call it. Returns
/// three numbers for each rank.
pub fn connect(comm: &Comm, data: &PeerMemory, flags: &PeerMemory) -> anyhow::Result<CudaSlice<u64>> {
    let stream = comm.stream();
    let gpu: &Arc<CudaContext> = stream.context();
    // ANCHOR: connect
    // Connect the ranks:
    // 1. the result has three numbers for each rank, in rank order: its GPU's ordinal, and the addresses of its data
    //    and its flags;
    // 2. kernels on this rank's GPU can access the memory of every other rank's GPU.
    todo!("Connect the ranks")
    // ANCHOR_END: connect
}
