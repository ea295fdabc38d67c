//! `ncclUniqueId`: the id that the ranks of one communicator share, and the address at which they connect.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use super::wire::{Reader, Wire, Writer};
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The first bytes of every id. The last two of them are the format version.
const MAGIC: &[u8; 8] = b"vgpuid02";

/// Returns a random key for this process, which distinguishes processes with the same process ID.
pub(crate) fn process_key() -> u64 {
    static KEY: OnceLock<u64> = OnceLock::new();
    *KEY.get_or_init(random)
}

/// Returns a random number: every `RandomState` has its own keys.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// An `ncclUniqueId`.
///
/// | bytes | |
/// |---|---|
/// | 0..8 | `MAGIC` |
/// | 8..12 | process ID of the process that made it; 0 if it comes from `NCCL_COMM_ID` |
/// | 12..14 | port on which that process listens; 0 if it does not listen |
/// | 16..32 | its IPv6 address, or its IPv4 address mapped to IPv6 |
/// | 32..48 | a secret, which a process needs to join |
/// | 48..56 | key of the process that made it |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; 128]);

impl Wire for UniqueId {
    fn write(&self, to: &mut Writer) {
        self.0.as_chunks::<8>().0.iter().for_each(|word| {
            to.put(word);
        });
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut bytes = [0; 128];
        for word in bytes.as_chunks_mut::<8>().0 {
            *word = from.get()?;
        }
        Some(Self(bytes))
    }
}

impl UniqueId {
    /// Creates an id for this process. `address` is where the process listens, if it listens at all.
    pub(crate) fn new(address: Option<SocketAddr>) -> Self {
        let mut secret = [0; 16];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&random().to_le_bytes());
        }
        Self::made_by(std::process::id(), process_key(), address, secret)
    }

    /// Returns the id that every process derives if `NCCL_COMM_ID` is this address.
    pub(crate) fn of_address(address: SocketAddr) -> Self {
        Self::made_by(0, 0, Some(address), [0; 16])
    }

    fn made_by(pid: u32, key: u64, address: Option<SocketAddr>, secret: [u8; 16]) -> Self {
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&pid.to_le_bytes());
        if let Some(address) = address {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[12..14].copy_from_slice(&address.port().to_le_bytes());
            bytes[16..32].copy_from_slice(&ip.octets());
        }
        bytes[32..48].copy_from_slice(&secret);
        bytes[48..56].copy_from_slice(&key.to_le_bytes());
        Self(bytes)
    }

    /// Validates an id that the caller passed in.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if these bytes are not an id from `ncclGetUniqueId`, and `InvalidUsage` if another
    /// version created the id.
    pub fn from_bytes(bytes: [u8; 128]) -> NcclResult<Self> {
        if bytes[..6] != MAGIC[..6] {
            let message =
                "these 128 bytes are not an id from ncclGetUniqueId: pass the complete id, unchanged";
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        if bytes[..8] != MAGIC[..] {
            let message =
                "another version of the virtual GPU created the id: all ranks must use the same version";
            return Err(Error::new(NcclStatus::InvalidUsage, message));
        }
        Ok(Self(bytes))
    }

    /// Returns the id's bytes as C code stores them.
    pub fn bytes(&self) -> &[u8; 128] {
        &self.0
    }

    /// Returns whether this process created the id.
    pub(crate) fn is_own(&self) -> bool {
        self.0[48..56] == process_key().to_le_bytes()
    }

    /// Returns whether the id comes from `NCCL_COMM_ID`. Such an id is the same in every process, and rank 0's process
    /// listens.
    pub(crate) fn is_of_address(&self) -> bool {
        self.maker() == 0
    }

    /// Returns the process ID of the process that created the id.
    pub(crate) fn maker(&self) -> u32 {
        u32::from_le_bytes([self.0[8], self.0[9], self.0[10], self.0[11]])
    }

    /// Returns the address that ranks in other processes connect to.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let port = u16::from_le_bytes([self.0[12], self.0[13]]);
        let ip: [u8; 16] = self.0[16..32].try_into().ok()?;
        (port != 0).then(|| SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_address() {
        for text in ["127.0.0.1:4000", "[::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let id = UniqueId::from_bytes(*UniqueId::new(Some(address)).bytes()).unwrap();
            assert_eq!(id.address(), Some(address));
            assert!(id.is_own() && !id.is_of_address() && id.maker() == std::process::id());
            assert_ne!(UniqueId::new(Some(address)), id);
            assert_eq!(UniqueId::of_address(address), UniqueId::of_address(address));
            assert!(UniqueId::of_address(address).is_of_address() && !UniqueId::of_address(address).is_own());
        }
        assert_eq!(UniqueId::new(None).address(), None);
    }

    #[test]
    fn invalid_ids_are_refused() {
        let status = |bytes| UniqueId::from_bytes(bytes).unwrap_err().status;
        assert_eq!(status([0; 128]), NcclStatus::InvalidArgument);
        assert_eq!(status([0xa5; 128]), NcclStatus::InvalidArgument);
        let mut other = *UniqueId::new(None).bytes();
        other[7] = b'1';
        assert_eq!(status(other), NcclStatus::InvalidUsage);
    }
}
