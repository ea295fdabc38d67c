// mistake: all ask the pool of GPU 0
// fails: pools::the_report_is_of_the_stream_s_gpu
// says: this is the report of another GPU: each has a pool of its own

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::sys::CUmemPool_attribute::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as RESERVED_HIGH,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED, CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH,
};
use cudarc::driver::{CudaSlice, CudaStream, CudaView};
use lab::{Kernels, MemoryPool};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReport {
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
}

impl PoolReport {
    pub fn idle_share(&self) -> f64 {
        1.0 - self.used as f64 / (self.reserved as f64).max(self.used as f64).max(1.0)
    }
}

pub fn report(stream: &CudaStream) -> anyhow::Result<PoolReport> {
    let _ = stream;
    let pool = MemoryPool::of_gpu(0)?;
    Ok(PoolReport {
        used: pool.figure(USED)?,
        used_high: pool.figure(USED_HIGH)?,
        reserved: pool.figure(RESERVED)?,
        reserved_high: pool.figure(RESERVED_HIGH)?,
    })
}

pub fn watch(
    stream: &CudaStream,
    times: usize,
    mut work: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<PoolReport>> {
    let pool = MemoryPool::of_gpu(stream.context().ordinal())?;
    let mut reports = Vec::new();
    for index in 0..times {
        reports.push(watch_once(stream, &pool, || work(index))?);
    }
    Ok(reports)
}

fn watch_once(
    stream: &CudaStream,
    pool: &MemoryPool,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<PoolReport> {
    pool.reset(USED_HIGH)?;
    pool.reset(RESERVED_HIGH)?;
    work()?;
    stream.synchronize()?;
    report(stream)
}

pub struct Distances {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    difference: CudaSlice<f32>,
    sum: CudaSlice<f32>,
}

impl Distances {
    pub fn new(stream: &Arc<CudaStream>, longest: usize) -> anyhow::Result<Self> {
        ensure!(longest > 0, "vectors of no elements");

        Ok(Self {
            stream: stream.clone(),
            kernels: Kernels::load(stream.context())?,
            difference: stream.alloc_zeros(longest)?,
            sum: stream.alloc_zeros(1)?,
        })
    }

    pub fn squared(&mut self, a: &CudaView<f32>, b: &CudaView<f32>) -> anyhow::Result<f32> {
        let (len, room) = (a.len(), self.difference.len());
        ensure!(len == b.len(), "vectors of {len} and {} elements", b.len());
        ensure!(len <= room, "vectors of {len} elements, where there is room for {room}");
        let Self { stream, kernels, difference, sum } = self;
        let mut difference = difference.slice_mut(..len);
        stream.memcpy_dtod(a, &mut difference)?;
        kernels.axpy(stream, &mut difference, b, -1.0)?;
        kernels.sum_of_squares(stream, sum, &difference)?;
        Ok(stream.clone_dtoh(sum)?[0])
    }
}

pub fn release(buffer: CudaSlice<f32>, user: &CudaStream) -> anyhow::Result<()> {
    buffer.stream().join(user)?;
    drop(buffer);
    Ok(())
}
