//! How long NCCL takes for a collective, by its own tuning model (NCCL 2.30, `graph/tuning.cc`):
//! `time = latency + bytes / algorithm bandwidth`, the best over algorithm and protocol.

use super::preset::Preset;

/// What a collective moves, by its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// All reduce: twice around the ring.
    AllReduce,
    /// All gather and reduce scatter: once around the ring.
    OneSided,
    /// Broadcast and reduce: down the ring.
    Rooted,
    /// All to all, gather and scatter: each part goes straight to its rank.
    Direct,
}

/// A protocol's base latency and latency per NVLink hop, in µs, for the ring and for the tree; and what part of the
/// ring's bandwidth it gets.
struct Protocol {
    ring: (f64, f64),
    tree: (f64, f64),
    ring_bandwidth: fn(&Preset) -> f64,
    tree_bandwidth: fn(&Preset) -> f64,
}

/// Bytes a second that rings reach with the protocol LL on one Hopper node.
const LL_RING_CAP: f64 = 141e9;
/// The same, for each channel with LL128, in rings and in trees.
const LL128_RING_PER_CHANNEL: f64 = 36.7e9;
const LL128_TREE_PER_CHANNEL: f64 = 38.7e9;

/// LL, LL128 and Simple. The caps are those of full-speed links; they scale with a preset's throughput.
const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        ring: (6.6, 0.6),
        tree: (6.8, 0.6),
        ring_bandwidth: |preset| (preset.ring_bytes / 2.0).min(LL_RING_CAP * scale(preset)),
        tree_bandwidth: |preset| preset.ring_bytes * 0.92 / 3.8,
    },
    Protocol {
        ring: (14.0, 1.9),
        tree: (14.0, 1.25),
        ring_bandwidth: |preset| {
            (preset.ring_bytes * 0.92)
                .min(LL128_RING_PER_CHANNEL * f64::from(preset.channels) * scale(preset))
        },
        tree_bandwidth: |preset| {
            (preset.ring_bytes * 0.92)
                .min(LL128_TREE_PER_CHANNEL * f64::from(preset.channels) * scale(preset))
        },
    },
    Protocol {
        ring: (8.4, 3.4),
        tree: (8.4, 4.0),
        ring_bandwidth: |preset| preset.ring_bytes,
        tree_bandwidth: |preset| preset.ring_bytes * 0.92,
    },
];

/// Latency of in-switch reductions, in µs.
const SWITCH_LATENCY: f64 = 25.0;

/// Throughput of a preset's links beside those that NCCL's caps were measured on.
fn scale(preset: &Preset) -> f64 {
    preset.ring_bytes / super::preset::DGX_H100.ring_bytes
}

/// Nanoseconds that a collective of `ranks` ranks on one node takes; `bytes` is the size of the large side.
pub(crate) fn duration(preset: &Preset, pattern: Pattern, ranks: usize, bytes: u64) -> u64 {
    let (n, bytes) = (ranks as f64, bytes as f64);
    if ranks < 2 {
        return (PROTOCOLS[0].ring.0 * 1e3 + bytes / preset.memory_bytes * 1e9) as u64;
    }
    let steps = match pattern {
        Pattern::AllReduce => 2.0 * (n - 1.0),
        Pattern::OneSided | Pattern::Direct => n - 1.0,
        Pattern::Rooted => n,
    };
    let time = |latency_us: f64, bandwidth: f64| latency_us * 1e3 + bytes / bandwidth * 1e9;
    let mut best = f64::INFINITY;
    for protocol in &PROTOCOLS {
        let hops = match pattern {
            Pattern::AllReduce => steps,
            Pattern::Direct => 1.0,
            _ => n - 1.0,
        };
        let latency = protocol.ring.0 + hops * protocol.ring.1;
        best = best.min(time(latency, (protocol.ring_bandwidth)(preset) * n / steps));
        if pattern == Pattern::AllReduce {
            let latency = protocol.tree.0 + 2.0 * (n - 1.0) * protocol.tree.1;
            best = best.min(time(latency, (protocol.tree_bandwidth)(preset) / 2.0));
        }
    }
    // NVLS needs more than two GPUs behind the switch.
    if pattern == Pattern::AllReduce && preset.switch_bytes > 0.0 && ranks > 2 {
        best = best.min(time(SWITCH_LATENCY, preset.switch_bytes * n / steps));
    }
    best as u64
}

/// Nanoseconds that messages between two ranks of one node take, of which each moves `bytes` through one GPU's links.
pub(crate) fn message_duration(preset: &Preset, bytes: u64) -> u64 {
    // What a direct pattern of two ranks takes for twice as many: each keeps half.
    duration(preset, Pattern::Direct, 2, bytes.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::super::preset::{CLASSROOM_H100, DGX_H100};
    use super::*;

    /// Bus bandwidth of an all-reduce in GB/s, as nccl-tests defines it.
    fn bus_bandwidth(preset: &Preset, ranks: usize, bytes: u64) -> f64 {
        let n = ranks as f64;
        bytes as f64 / duration(preset, Pattern::AllReduce, ranks, bytes) as f64 * 2.0 * (n - 1.0) / n
    }

    #[test]
    fn large_messages_reach_the_published_bus_bandwidth() {
        // nccl-tests on 8 H100: 476 to 480 GB/s.
        let measured = bus_bandwidth(&DGX_H100, 8, 8 << 30);
        assert!((measured - 478.0).abs() < 0.1 * 478.0, "{measured}");
    }

    #[test]
    fn small_messages_take_the_latency_of_the_best_protocol() {
        // Ring and LL over 8 GPUs: 6.6 + 14 × 0.6 µs.
        assert_eq!(duration(&DGX_H100, Pattern::AllReduce, 8, 8) / 100, 150);
    }

    #[test]
    fn the_classroom_is_slower_by_its_factor_and_no_quicker_to_start() {
        let large = |preset| duration(preset, Pattern::AllReduce, 8, 1 << 30) as f64;
        assert!((large(&CLASSROOM_H100) / large(&DGX_H100) / 1e4 - 1.0).abs() < 0.02);
        let one_sided = |preset| duration(preset, Pattern::OneSided, 8, 0);
        assert_eq!(one_sided(&CLASSROOM_H100), one_sided(&DGX_H100));
    }
}
