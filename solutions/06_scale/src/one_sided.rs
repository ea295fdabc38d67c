//! Halo exchange by one-sided puts: each rank writes its outermost rows into its neighbors' memory, and sends a signal.
//!
//! The ranks divide a plate by rows. In each step, every element becomes the average of those above and below it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use lab::{Kernels, OneSidedComm, Window};

/// One rank's rows of a plate. Outside of the plate, everything is 0.
pub struct Plate {
    /// The number of steps that have been taken.
    pub steps: usize,
    /// Two grids, one after the other. Each has `rows + 2` rows of `width` elements: the halo above, the rank's own
    /// rows, and the halo below. A halo is a copy of a neighbor's outermost row.
    window: Window,
    rows: usize,
    width: usize,
    kernels: Kernels,
}

impl Plate {
    /// Creates one rank's rows, with these values and complete halos, in grid 0. Every rank must call it, with the
    /// same numbers.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn new(comm: &OneSidedComm, rows: usize, width: usize, values: &[f32]) -> anyhow::Result<Self> {
        let stream = comm.stream();
        let window = comm.window(2 * (rows + 2) * width)?;
        let kernels = Kernels::load(stream.context())?;
        let mut plate = Self { steps: 0, window, rows, width, kernels };
        let own = plate.start(0, 1)..plate.start(0, rows + 1);
        stream.memcpy_htod(values, &mut plate.window.slice_mut(own))?;
        plate.exchange(comm, 0)?;
        Ok(plate)
    }

    /// Returns the index in the window of the first element of a row. Row 0 is the halo above, the rows from 1 to
    /// `rows` are the rank's own, and row `rows + 1` is the halo below.
    fn start(&self, grid: usize, row: usize) -> usize {
        (grid * (self.rows + 2) + row) * self.width
    }

    /// Completes the halos of a grid on all ranks. Every rank must call it.
    fn exchange(&self, comm: &OneSidedComm, grid: usize) -> anyhow::Result<()> {
        let (rank, last, width) = (comm.rank(), self.rows, self.width);
        // ANCHOR: exchange
        // Complete the halos of this grid, on this rank and its neighbors:
        // 1. a neighbor's halo is a copy of this rank's outermost row on that side;
        // 2. what follows on the stream sees both halos, but the host does not wait;
        // 3. the first rank has no neighbor above it, and the last rank has none below it.
        let mut neighbors = Vec::new();
        if rank > 0 {
            let own = self.start(grid, 1);
            comm.put(&self.window, own..own + width, rank - 1, self.start(grid, last + 1))?;
            neighbors.push(rank - 1);
        }
        if rank + 1 < comm.world_size() {
            let own = self.start(grid, last);
            comm.put(&self.window, own..own + width, rank + 1, self.start(grid, 0))?;
            neighbors.push(rank + 1);
        }
        comm.wait(&neighbors)
        // ANCHOR_END: exchange
    }

    /// Takes one step. Every rank must call it. Returns without waiting for the GPU.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn step(&mut self, comm: &OneSidedComm) -> anyhow::Result<()> {
        let stream = comm.stream();
        // ANCHOR: step
        // Take one step:
        // 1. after an even number of steps, the current values are in grid 0, and otherwise in grid 1;
        // 2. afterward, the other grid is complete on every rank, with its halos;
        // 3. no put writes to a halo that its rank may still read.
        self.average(&stream, self.steps % 2)?;
        self.steps += 1;
        self.exchange(comm, self.steps % 2)
        // ANCHOR_END: step
    }

    /// Enqueues the averages for all own rows, from one grid to the other one. It reads the halos, and does not write
    /// them.
    fn average(&mut self, stream: &Arc<CudaStream>, from: usize) -> anyhow::Result<()> {
        let (len, two_rows) = (self.rows * self.width, 2 * self.width);
        let own = self.width..self.width + len;
        let half = self.start(1, 0);
        let (mut zero, mut one) = self.window.split_at_mut(half);
        let (source, target) = if from == 0 { (&zero, &mut one) } else { (&one, &mut zero) };
        let mut target = target.slice_mut(own);
        stream.memset_zeros(&mut target)?;
        self.kernels.axpy(stream, &mut target, &source.slice(..len), 0.5)?;
        self.kernels.axpy(stream, &mut target, &source.slice(two_rows..two_rows + len), 0.5)
    }

    /// Waits for the steps, and returns the values of this rank's rows.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn read(&self, comm: &OneSidedComm) -> anyhow::Result<Vec<f32>> {
        let (stream, grid) = (comm.stream(), self.steps % 2);
        let own = self.start(grid, 1)..self.start(grid, self.rows + 1);
        let values = stream.clone_dtoh(&self.window.slice(own))?;
        stream.synchronize()?;
        Ok(values)
    }
}
