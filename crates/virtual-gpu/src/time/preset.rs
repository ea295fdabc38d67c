//! The machines that can be modelled: figures, with where they come from.

/// Figures of a node of equal GPUs. Rates are per second; all of them belong to one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name, which every modelled figure carries.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Instructions of single threads, by all multiprocessors together.
    pub lane_instructions: f64,
    /// Bytes between the multiprocessors and memory.
    pub memory_bytes: f64,
    /// Bytes from the host to the device.
    pub upload_bytes: f64,
    /// Bytes from the device to the host.
    pub download_bytes: f64,
    /// Bytes to or from a peer, by copies.
    pub peer_bytes: f64,
    /// Bus bandwidth of NCCL's rings over all channels, in bytes.
    pub ring_bytes: f64,
    /// Bus bandwidth of in-switch reductions (NVLS) over all eight GPUs, in bytes; 0 without such switches.
    pub switch_bytes: f64,
    /// Channels of NCCL's rings.
    pub channels: u32,
    /// How many times larger the data is that a program's data stands for. A kernel on it would have so many times as
    /// many blocks, and so fill the GPU.
    pub stands_for: f64,
}

/// A DGX H100: eight H100 SXM5 80 GB behind NVSwitch.
///
/// - 132 multiprocessors × 128 lanes × 1.98 GHz boost, memory 3.35 TB/s ("NVIDIA H100 Tensor Core GPU Architecture").
/// - Copies to the host 53 GB/s, from it 55 GB/s, as measured over PCIe 5.
/// - NVLink 4: 18 links of 25 GB/s each way, of which NCCL counts 20.6 GB/s a link (`graph/topo.h`, sm90).
/// - NVLS: 8 channels × 40 GB/s × 0.85 × 2·7/8 (`graph/tuning.cc`).
pub const DGX_H100: Preset = Preset {
    name: "dgx-h100",
    multiprocessors: 132,
    lane_instructions: 132.0 * 128.0 * 1.98e9,
    memory_bytes: 3.35e12,
    upload_bytes: 55e9,
    download_bytes: 53e9,
    peer_bytes: 18.0 * 20.6e9,
    ring_bytes: 18.0 * 20.6e9,
    switch_bytes: 8.0 * 40e9 * 0.85 * 2.0 * 7.0 / 8.0,
    channels: 18,
    stands_for: 1.0,
};

/// How much slower the classroom's throughputs are. Its latencies are those of the real node, so that kilobytes behave
/// like tens of megabytes, and overlap shows on small data.
const CLASSROOM: f64 = 1e4;

/// A DGX H100 with every throughput divided by 10⁴.
pub const CLASSROOM_H100: Preset = Preset {
    name: "classroom",
    lane_instructions: DGX_H100.lane_instructions / CLASSROOM,
    memory_bytes: DGX_H100.memory_bytes / CLASSROOM,
    upload_bytes: DGX_H100.upload_bytes / CLASSROOM,
    download_bytes: DGX_H100.download_bytes / CLASSROOM,
    peer_bytes: DGX_H100.peer_bytes / CLASSROOM,
    ring_bytes: DGX_H100.ring_bytes / CLASSROOM,
    switch_bytes: DGX_H100.switch_bytes / CLASSROOM,
    stands_for: CLASSROOM,
    ..DGX_H100
};

/// Every preset.
pub const PRESETS: [&Preset; 2] = [&CLASSROOM_H100, &DGX_H100];
