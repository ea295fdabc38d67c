//! The format of messages between processes: numbers are little-endian, and lists are preceded by their lengths.
//!
//! Data from other processes is not trusted: anything that can't be parsed becomes `None` and ends the connection.

use super::internal;
use super::operation::{Collective, Operation};
use super::session::{CommTag, ProcessNumber};
use super::transfer::{Direction, Transfer};
use virtual_gpu_core::handle::{Rank, SequenceNumber};
use virtual_gpu_core::source_location::{CallSite, PortableCallSite};
use virtual_gpu_core::status::{Error, NcclStatus};
use virtual_gpu_machine::reduction::{DataType, Operator};

/// A message that is being written.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

/// A message that is being read.
pub(crate) struct Reader<'a>(&'a [u8]);

/// A message from another process is invalid, so the connection ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Malformed;

/// Why a message from another process can't be applied.
#[derive(Debug)]
pub(crate) enum EventError {
    /// The message is invalid.
    Malformed,
    /// An object that the message needs is gone.
    Internal(Error<NcclStatus>),
}

impl EventError {
    /// Prints an internal error, which does not end the connection.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the message is invalid.
    pub(crate) fn reported<T: Default>(result: Result<T, Self>) -> Result<T, Malformed> {
        match result {
            Ok(value) => Ok(value),
            Err(Self::Malformed) => Err(Malformed),
            Err(Self::Internal(error)) => Ok(internal::report(Err(error))),
        }
    }
}

impl From<Malformed> for EventError {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<Error<NcclStatus>> for EventError {
    fn from(error: Error<NcclStatus>) -> Self {
        Self::Internal(error)
    }
}

/// A value that can be sent.
pub(crate) trait Wire: Sized {
    fn write(&self, to: &mut Writer);
    fn read(from: &mut Reader<'_>) -> Option<Self>;
}

impl Writer {
    pub(crate) fn put(&mut self, value: &impl Wire) -> &mut Self {
        value.write(self);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn get<T: Wire>(&mut self) -> Option<T> {
        T::read(self)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads the length of a list in which each entry has at least `of_entry` bytes.
    fn len(&mut self, of_entry: usize) -> Option<usize> {
        let len = usize::try_from(self.get::<u64>()?).ok()?;
        (len.checked_mul(of_entry)? <= self.0.len()).then_some(len)
    }

    /// Returns whether everything has been read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! number {
    ($($t:ty),*) => { $(
        impl Wire for $t {
            fn write(&self, to: &mut Writer) {
                to.0.extend_from_slice(&self.to_le_bytes());
            }

            fn read(from: &mut Reader<'_>) -> Option<Self> {
                Some(Self::from_le_bytes(from.take(size_of::<Self>())?.try_into().ok()?))
            }
        }
    )* };
}
number!(u8, u16, u32, i32, u64);

/// Sends a newtype as its number.
macro_rules! newtype {
    ($($t:ident),*) => { $(
        impl Wire for $t {
            fn write(&self, to: &mut Writer) {
                to.put(&self.0);
            }

            fn read(from: &mut Reader<'_>) -> Option<Self> {
                from.get().map($t)
            }
        }
    )* };
}
newtype!(Rank, SequenceNumber, CommTag, ProcessNumber);

impl Wire for usize {
    fn write(&self, to: &mut Writer) {
        to.put(&(*self as u64));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.get::<u64>()?.try_into().ok()
    }
}

impl Wire for bool {
    fn write(&self, to: &mut Writer) {
        to.put(&u8::from(*self));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        match from.get::<u8>()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for [u8; 8] {
    fn write(&self, to: &mut Writer) {
        to.0.extend_from_slice(self);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.take(8)?.try_into().ok()
    }
}

/// A list of bytes, which is sent as a block. A list of any other type is sent entry by entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Payload(pub(crate) Vec<u8>);

impl Wire for Payload {
    fn write(&self, to: &mut Writer) {
        to.put(&self.0.len());
        to.0.extend_from_slice(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let len = from.len(1)?;
        Some(Self(from.take(len)?.to_vec()))
    }
}

impl Wire for String {
    fn write(&self, to: &mut Writer) {
        to.put(&self.len());
        to.0.extend_from_slice(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let len = from.len(1)?;
        Self::from_utf8(from.take(len)?.to_vec()).ok()
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn write(&self, to: &mut Writer) {
        to.put(&self.len());
        self.iter().for_each(|entry| entry.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let len = from.len(1)?;
        (0..len).map(|_| from.get()).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, to: &mut Writer) {
        to.put(&self.is_some());
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        if from.get()? { Some(Some(from.get()?)) } else { Some(None) }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn write(&self, to: &mut Writer) {
        to.put(&self.0).put(&self.1);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some((from.get()?, from.get()?))
    }
}

/// Implements [`Wire`] for structures that are sent field by field.
macro_rules! structure {
    ($($name:ident { $($field:ident),* })*) => { $(
        impl $crate::wire::Wire for $name {
            fn write(&self, to: &mut $crate::wire::Writer) {
                to$(.put(&self.$field))*;
            }

            fn read(from: &mut $crate::wire::Reader<'_>) -> Option<Self> {
                Some(Self { $($field: from.get()?),* })
            }
        }
    )* };
}
pub(crate) use structure;

structure! {
    Operation { collective, count, data_type }
    Transfer { direction, peer, count, data_type }
    PortableCallSite { frames }
}

impl Wire for CallSite {
    fn write(&self, to: &mut Writer) {
        to.put(&self.to_portable());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self::from_portable(&from.get()?))
    }
}

impl Wire for NcclStatus {
    fn write(&self, to: &mut Writer) {
        to.put(&(*self as u32));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Self::from_value(from.get()?)
    }
}

impl Wire for DataType {
    fn write(&self, to: &mut Writer) {
        to.put(&(*self as u32));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Self::from_value(from.get()?)
    }
}

impl Wire for Operator {
    fn write(&self, to: &mut Writer) {
        to.put(&(*self as u32));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let value = from.get()?;
        Self::from_value(value).or((value == Self::PreMulSum as u32).then_some(Self::PreMulSum))
    }
}

impl Wire for Direction {
    fn write(&self, to: &mut Writer) {
        to.put(&(*self == Self::Send));
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(if from.get()? { Self::Send } else { Self::Receive })
    }
}

impl Wire for Collective {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::AllReduce(operator) => to.put(&0u8).put(operator),
            Self::Broadcast { root } => to.put(&1u8).put(root),
            Self::Reduce { operator, root } => to.put(&2u8).put(operator).put(root),
            Self::AllGather => to.put(&3u8),
            Self::ReduceScatter(operator) => to.put(&4u8).put(operator),
            Self::AllToAll => to.put(&5u8),
            Self::Gather { root } => to.put(&6u8).put(root),
            Self::Scatter { root } => to.put(&7u8).put(root),
        };
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            0 => Self::AllReduce(from.get()?),
            1 => Self::Broadcast { root: from.get()? },
            2 => Self::Reduce { operator: from.get()?, root: from.get()? },
            3 => Self::AllGather,
            4 => Self::ReduceScatter(from.get()?),
            5 => Self::AllToAll,
            6 => Self::Gather { root: from.get()? },
            7 => Self::Scatter { root: from.get()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_can_be_read_but_their_prefixes_cannot() {
        let operation = Operation {
            collective: Collective::Reduce { operator: Operator::PreMulSum, root: Rank(3) },
            count: 1 << 40,
            data_type: DataType::Bfloat16,
        };
        let list = vec![(1u64, "a rank".to_owned()), (2, String::new())];
        let mut writer = Writer::default();
        writer.put(&operation).put(&list).put(&Payload(vec![1, 2, 3]));
        let bytes = writer.finish();
        let read = |bytes| {
            let mut reader = Reader::new(bytes);
            let all =
                (reader.get::<Operation>()?, reader.get::<Vec<(u64, String)>>()?, reader.get::<Payload>()?);
            reader.is_at_end().then_some(all)
        };
        assert_eq!(read(&bytes), Some((operation, list, Payload(vec![1, 2, 3]))));
        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]), None);
        }
    }

    #[test]
    fn a_length_without_its_bytes_allocates_nothing() {
        let mut writer = Writer::default();
        writer.put(&u64::MAX).put(&7u8);
        let bytes = writer.finish();
        assert_eq!(Reader::new(&bytes).get::<Payload>(), None);
        assert_eq!(Reader::new(&bytes).get::<Vec<u64>>(), None);
        assert_eq!(Reader::new(&bytes).get::<String>(), None);
    }
}
