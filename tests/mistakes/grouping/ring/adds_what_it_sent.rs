// mistake: each shift adds what the rank has sent, and not what came in
// fails: ring::every_rank_gets_the_sum
// says: each shift adds what it sent, and not what came in

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::{Kernels, Readable};

pub fn neighbours(rank: usize, world_size: usize) -> (usize, usize) {
    ((rank + world_size - 1) % world_size, (rank + 1) % world_size)
}

pub fn shift(comm: &Comm, outgoing: &CudaView<f32>, incoming: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (left, right) = neighbours(comm.rank(), comm.world_size());
    group_start().readable()?;
    let sent = comm.send(outgoing, right as i32).readable();
    let received = comm.recv(incoming, left as i32).readable();
    let ended = group_end().readable();
    sent.and(received).and(ended).map(drop)
}

pub fn sum_around(
    comm: &Comm,
    kernels: &Kernels,
    own: &CudaView<f32>,
    total: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let stream = comm.stream();
    stream.memcpy_dtod(own, total)?;
    let mut passing = stream.clone_dtod(own)?;
    let mut arriving = stream.alloc_zeros::<f32>(own.len())?;
    for _ in 1..comm.world_size() {
        shift(comm, &passing.as_view(), &mut arriving.as_view_mut())?;
        kernels.axpy(&stream, total, &passing, 1.0)?;
        std::mem::swap(&mut passing, &mut arriving);
    }
    Ok(())
}
