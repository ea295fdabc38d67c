//! How long NCCL takes for a collective, and which algorithm and protocol it uses, according to its own tuning model
//! (NCCL 2.30, `graph/tuning.cc`). `time = latency + bytes / algorithm bandwidth`, for the fastest allowed combination.

use super::choice::Enabled;
use super::nccl_figures::AMPERE;
use super::nccl_figures::BLACKWELL;
use super::nccl_figures::Caps;
use super::nccl_figures::HOPPER;
use super::nccl_figures::LL_CAP_OF_NODES;
use super::nccl_figures::Latencies;
use super::nccl_figures::NETWORK_OVERHEAD;
use super::nccl_figures::NVLS;
use super::nccl_figures::NVLS_TREE;
use super::nccl_figures::POINT_TO_POINT_LL;
use super::nccl_figures::RING;
use super::nccl_figures::RING_PLATEAU;
use super::nccl_figures::TREE;
use super::nccl_figures::TREE_CORRECTION;
use super::nccl_figures::VOLTA;
use super::preset::{Generation, LinkKind, Links, Preset};
use virtual_gpu_core::sorted::SortedSet;

/// A collective that the model has figures for, in the order of NCCL's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `ncclBroadcast`.
    Broadcast,
    /// `ncclReduce`.
    Reduce,
    /// `ncclAllGather`.
    AllGather,
    /// `ncclReduceScatter`.
    ReduceScatter,
    /// `ncclAllReduce`.
    AllReduce,
}

/// How a collective moves its data, in the order of NCCL's tables. NCCL has more algorithms, for other hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A double binary tree.
    Tree,
    /// A ring.
    Ring,
    /// Reductions in a node's switches (NVLink SHARP).
    Nvls,
    /// The same within nodes, with a tree between them.
    NvlsTree,
}

/// How the arrival of data is signaled: with a flag in each word, a flag in each 128 bytes, or separate flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A flag in each word (low latency).
    Ll,
    /// A flag in each 128 bytes.
    Ll128,
    /// Flags separate from the data.
    Simple,
}

pub(crate) const FUNCTIONS: [(&str, Function); 5] = [
    ("Broadcast", Function::Broadcast),
    ("Reduce", Function::Reduce),
    ("AllGather", Function::AllGather),
    ("ReduceScatter", Function::ReduceScatter),
    ("AllReduce", Function::AllReduce),
];
pub(crate) const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("Tree", Algorithm::Tree),
    ("Ring", Algorithm::Ring),
    ("NVLS", Algorithm::Nvls),
    ("NVLSTree", Algorithm::NvlsTree),
];
pub(crate) const PROTOCOLS: [(&str, Protocol); 3] =
    [("LL", Protocol::Ll), ("LL128", Protocol::Ll128), ("Simple", Protocol::Simple)];

impl Algorithm {
    /// Returns its name in `NCCL_ALGO`.
    pub fn name(self) -> &'static str {
        ALGORITHMS[self as usize].0
    }
}

impl Protocol {
    /// Returns its name in `NCCL_PROTO`.
    pub fn name(self) -> &'static str {
        PROTOCOLS[self as usize].0
    }
}

/// A communicator's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// The number of ranks.
    pub ranks: usize,
    /// The number of nodes that the GPUs are on.
    pub(crate) nodes: usize,
}

impl World {
    /// Returns the world for ranks on these GPUs.
    pub fn of(preset: &Preset, gpus: impl Iterator<Item = usize>) -> Self {
        let mut nodes = SortedSet::default();
        let mut ranks = 0;
        for gpu in gpus {
            ranks += 1;
            nodes.insert(gpu / preset.gpus_per_node);
        }
        Self { ranks, nodes: nodes.iter().len() }
    }
}

/// NCCL's choice for a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// How the data moves.
    pub algorithm: Algorithm,
    /// How its arrival is signaled.
    pub protocol: Protocol,
    /// How long the collective takes.
    pub nanoseconds: u64,
}

/// Returns what NCCL chooses for a collective whose larger side has this many bytes; `None` if all existing
/// combinations are disabled. `in_switch` is true if the switches can reduce this data.
pub fn choose(
    preset: &Preset,
    enabled: &Enabled,
    function: Function,
    world: World,
    bytes: u64,
    in_switch: bool,
) -> Option<Choice> {
    let bytes = bytes as f64 * preset.stands_for;
    if world.ranks < 2 {
        // A copy, whose launch costs the same as any other launch.
        let nanoseconds = RING.base[0] * 1e3 + 2.0 * bytes / preset.memory_bytes * 1e9;
        let (algorithm, protocol) = (Algorithm::Ring, Protocol::Simple);
        return Some(Choice { algorithm, protocol, nanoseconds: nanoseconds as u64 });
    }
    let model = Model { links: &preset.links, function, world };
    let mut best: Option<Choice> = None;
    for (_, algorithm) in ALGORITHMS {
        let of_switch = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
        for (_, protocol) in PROTOCOLS {
            if !enabled.allows(function, algorithm, protocol) || (of_switch && !in_switch) {
                continue;
            }
            let Some(microseconds) = model.microseconds(algorithm, protocol, bytes) else { continue };
            let nanoseconds = (microseconds * 1e3) as u64;
            if best.is_none_or(|best| nanoseconds < best.nanoseconds) {
                best = Some(Choice { algorithm, protocol, nanoseconds });
            }
        }
    }
    best
}

/// Returns how many nanoseconds messages take that move `bytes` through one GPU's links, to or from peers on its node.
pub fn point_to_point(preset: &Preset, bytes: u64) -> u64 {
    let bytes = bytes as f64 * preset.stands_for;
    let links = &preset.links;
    let protocol = if bytes <= POINT_TO_POINT_LL { Protocol::Ll } else { Protocol::Simple };
    let bandwidth = links.bus() * if protocol == Protocol::Ll { 0.5 } else { 1.0 };
    let latency = RING.base[protocol as usize] + links.hop(&RING, protocol);
    (latency * 1e3 + bytes / bandwidth * 1e9) as u64
}

impl Links {
    /// Returns the bandwidth of all channels in bytes per second.
    fn bus(&self) -> f64 {
        self.channels * self.channel_bytes * self.efficiency
    }

    fn hop(&self, latencies: &Latencies, protocol: Protocol) -> f64 {
        match self.kind {
            LinkKind::NvLink => latencies.nvlink[protocol as usize],
            LinkKind::Pci => latencies.pci[protocol as usize],
        }
    }

    fn caps(&self) -> &'static Caps {
        match self.generation {
            Generation::Volta => &VOLTA,
            Generation::Ampere => &AMPERE,
            Generation::Hopper => &HOPPER,
            Generation::Blackwell => &BLACKWELL,
        }
    }
}

/// A row of NCCL's table.
struct Model<'a> {
    links: &'a Links,
    function: Function,
    world: World,
}

impl Model<'_> {
    fn microseconds(&self, algorithm: Algorithm, protocol: Protocol, bytes: f64) -> Option<f64> {
        let mut bandwidth = self.bandwidth(algorithm, protocol).filter(|bandwidth| *bandwidth > 0.0)?;
        let mut latency = self.latency(algorithm, protocol);
        let (ranks, nodes) = (self.world.ranks as f64, self.world.nodes);
        let size = (bytes / 64.0).log2().floor();
        if algorithm == Algorithm::Tree && (0.0..23.0).contains(&size) {
            bandwidth *= TREE_CORRECTION[protocol as usize][size as usize];
        }
        if (algorithm, protocol, self.function) == (Algorithm::Ring, Protocol::Simple, Function::AllReduce)
            && nodes > 1
            && bytes / (self.links.channels * ranks) >= RING_PLATEAU.0
        {
            latency *= RING_PLATEAU.1;
        }
        Some(latency + bytes / bandwidth * 1e6)
    }

    /// Returns the number of steps around the ring.
    fn steps(&self) -> f64 {
        let ranks = self.world.ranks as f64;
        match self.function {
            Function::AllReduce => 2.0 * (ranks - 1.0),
            Function::AllGather | Function::ReduceScatter => ranks - 1.0,
            Function::Broadcast | Function::Reduce => ranks,
        }
    }

    /// Returns the result's bytes per second (NCCL's algorithm bandwidth); `None` if the algorithm can't run the
    /// collective.
    fn bandwidth(&self, algorithm: Algorithm, protocol: Protocol) -> Option<f64> {
        let World { ranks, nodes } = self.world;
        let (links, caps, of_nodes) = (self.links, self.links.caps(), nodes.min(3) - 1);
        let all_reduce = self.function == Function::AllReduce;
        let ring_share = ranks as f64 / self.steps();
        // A ring or tree across several nodes is as fast as its slower part.
        let bus = if nodes > 1 { links.bus().min(links.network_bytes) } else { links.bus() };
        let per_channel = |cap: f64| cap * 1e9 * links.channels;
        let ll_cap = 1e9 * if nodes == 1 { caps.ll } else { LL_CAP_OF_NODES[of_nodes - 1] };
        match algorithm {
            Algorithm::Ring => Some(
                ring_share
                    * match protocol {
                        Protocol::Ll => ll_cap.min(bus / 2.0),
                        Protocol::Ll128 => (bus * 0.92).min(per_channel(caps.ring_ll128[of_nodes])),
                        Protocol::Simple => bus,
                    },
            ),
            Algorithm::Tree if all_reduce => {
                let bus = (bus * 0.92).min(per_channel(caps.tree[of_nodes]));
                let lines = if nodes == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                Some(
                    0.5 * match protocol {
                        Protocol::Ll => (bus / 3.8).min(ll_cap),
                        Protocol::Ll128 => (bus * lines).min(per_channel(caps.tree_ll128[of_nodes])),
                        Protocol::Simple => bus,
                    },
                )
            }
            Algorithm::Nvls | Algorithm::NvlsTree if protocol == Protocol::Simple => {
                let is_tree = algorithm == Algorithm::NvlsTree;
                // Each GPU of a node is the head of a channel. With two heads, NVLS is not worthwhile.
                let heads = (ranks / nodes) as f64;
                let one_sided = matches!(self.function, Function::AllGather | Function::ReduceScatter);
                if heads <= 2.0 || is_tree != (nodes > 1) || !(all_reduce || (one_sided && !is_tree)) {
                    return None;
                }
                let inside = links.switch_channel_bytes * caps.nvls_efficiency * (heads - 1.0) / heads;
                if one_sided {
                    return Some(heads * inside * (heads - 1.0) / heads);
                }
                let mut channel = inside * 2.0;
                if is_tree {
                    let network = links.network_bytes / heads * if nodes == 2 { 2.0 } else { 1.0 };
                    channel = channel.min(network).min(caps.nvls_tree[of_nodes] * 1e9);
                }
                Some(heads * channel * ring_share)
            }
            _ => None,
        }
    }

    /// Returns the latency in microseconds, excluding the time to move the data.
    fn latency(&self, algorithm: Algorithm, protocol: Protocol) -> f64 {
        let World { ranks, nodes } = self.world;
        let latencies = match algorithm {
            Algorithm::Tree => &TREE,
            Algorithm::Ring => &RING,
            Algorithm::Nvls => &NVLS,
            Algorithm::NvlsTree => &NVLS_TREE,
        };
        let at = protocol as usize;
        let (base, inside) = (latencies.base[at], self.links.hop(latencies, protocol));
        // With one GPU per node, nothing hides the network's latency.
        let between = if ranks == nodes { TREE.network[at] } else { latencies.network[at] };
        let levels = f64::from(nodes.ilog2());
        match (algorithm, self.function) {
            (Algorithm::Ring, Function::Broadcast | Function::Reduce) => {
                base + if nodes > 1 { latencies.network[at] } else { inside }
            }
            (Algorithm::Ring, _) => {
                let rounds = if self.function == Function::AllReduce { 2.0 } else { 1.0 };
                let outside = rounds * (nodes - 1) as f64;
                let overhead = match (nodes, protocol) {
                    (1, _) => 0.0,
                    (_, Protocol::Simple) => 3.0 * NETWORK_OVERHEAD,
                    _ => NETWORK_OVERHEAD,
                };
                base + (self.steps() - outside) * inside.max(overhead) + outside * between
            }
            (Algorithm::Tree, _) => base + 2.0 * ((ranks / nodes - 1) as f64 * inside + levels * between),
            (Algorithm::Nvls, _) => inside + if nodes > 1 { between } else { 0.0 },
            (Algorithm::NvlsTree, _) => base + inside + 2.0 * levels * between,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(preset: &str, world: World, bytes: u64) -> Choice {
        let preset = Preset::find(preset).unwrap();
        choose(&preset, &Enabled::default(), Function::AllReduce, world, bytes, true).unwrap()
    }

    const NODE: World = World { ranks: 8, nodes: 1 };

    #[test]
    fn small_messages_go_around_the_ring_with_ll_and_large_ones_through_the_switch() {
        let small = chosen("dgx-h100", NODE, 8);
        // 6.6 + 14 × 0.6 µs.
        assert_eq!(
            (small.algorithm, small.protocol, small.nanoseconds),
            (Algorithm::Ring, Protocol::Ll, 15_000)
        );
        let large = chosen("dgx-h100", NODE, 1 << 33);
        assert_eq!((large.algorithm, large.protocol), (Algorithm::Nvls, Protocol::Simple));
        assert_eq!(chosen("dgx-a100", NODE, 1 << 33).algorithm, Algorithm::Ring);
    }

    #[test]
    fn the_tree_of_two_nodes_has_the_latency_that_nccl_prints() {
        // A log from two nodes with eight H100s shows 25.207 µs for a few bytes, with Tree and LL.
        let enabled = Enabled::parse(Some("Tree"), Some("LL")).unwrap();
        let preset = Preset::find("dgx-h100").unwrap();
        let world = World { ranks: 16, nodes: 2 };
        let choice = choose(&preset, &enabled, Function::AllReduce, world, 8, true).unwrap();
        assert!((choice.nanoseconds as f64 / 25_207.0 - 1.0).abs() < 0.001, "{choice:?}");
    }

    #[test]
    fn the_classroom_divides_the_throughput_and_keeps_the_latency() {
        assert_eq!(chosen("classroom", NODE, 1 << 20), chosen("dgx-h100", NODE, 10_000 << 20));
        assert_eq!(chosen("classroom", NODE, 0), chosen("dgx-h100", NODE, 0));
        let [classroom, dgx] = ["classroom", "dgx-h100"].map(|name| Preset::find(name).unwrap());
        assert_eq!(point_to_point(&classroom, 1 << 20), point_to_point(&dgx, 10_000 << 20));
    }

    #[test]
    fn more_bytes_never_take_less_time_within_a_pair() {
        let preset = Preset::find("dgx-h100").unwrap();
        for (pair, algorithm) in ALGORITHMS {
            for (protocol, _) in PROTOCOLS {
                let Ok(enabled) = Enabled::parse(Some(pair), Some(protocol)) else {
                    panic!("{pair} {protocol}")
                };
                let of = |bytes| {
                    let choice = choose(&preset, &enabled, Function::AllReduce, NODE, bytes, true)?;
                    assert_eq!(choice.algorithm, algorithm);
                    Some(choice.nanoseconds)
                };
                // Check only large sizes, because a tree's correction factor jumps at medium sizes.
                assert!((28..36).all(|log| of(1 << log) <= of(1 << (log + 1))), "{pair} {protocol}");
            }
        }
    }

    #[test]
    fn combinations_that_are_switched_off_or_impossible_are_not_chosen() {
        let preset = Preset::find("dgx-h100").unwrap();
        let of = |algorithm, protocol, function, in_switch| {
            let enabled = Enabled::parse(algorithm, protocol).unwrap();
            choose(&preset, &enabled, function, NODE, 1 << 30, in_switch)
        };
        assert_eq!(of(Some("Tree"), None, Function::AllGather, true), None);
        assert_eq!(of(Some("NVLS"), None, Function::AllReduce, false), None);
        assert_eq!(of(Some("NVLS"), Some("LL"), Function::AllReduce, true), None);
        let ring = of(Some("^NVLS"), None, Function::AllReduce, true).unwrap();
        assert_eq!((ring.algorithm, ring.protocol), (Algorithm::Ring, Protocol::Simple));
    }
}
