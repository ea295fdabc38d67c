//! Sessions: the processes whose ranks joined with the same id. The process that created the id is the root. The other
//! processes are connected to the root, which also forwards messages between them.
//!
//! Each process knows about every rank's calls and does its own ranks' work itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bootstrap::Member;
use super::bootstrap_remote::{JoinRequest, Table};
use super::connection::Outbox;
use super::event::{Event, StreamName};
use super::id::UniqueId;
use super::internal::{self, vanished};
use super::wire::{EventError, Malformed, Reader, Wire, Writer};
use super::{Locked, Nccl, State};
use virtual_gpu_core::handle::{CommId, Rank, StreamHandle};
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The root's number in its session.
pub(crate) const ROOT: ProcessNumber = ProcessNumber(0);

/// How often an ending process checks whether the others have closed their connections.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The tag of the communicator that is created from the id. Splits create communicators with other tags.
pub(crate) const FIRST_TAG: CommTag = CommTag(0);

/// The smallest tag of a communicator created by a split.
pub(crate) const FIRST_SPLIT_TAG: CommTag = CommTag(1);

/// A session's number in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub(crate) u64);

/// A process's number in a session. The root is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessNumber(pub(crate) u16);

/// Identifies a communicator to all processes in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CommTag(pub(crate) u64);

/// What a process knows about a session.
pub(crate) struct Session {
    pub(crate) id: UniqueId,
    /// This process's number.
    pub(crate) own: ProcessNumber,
    /// The connections: in the root, to all other processes; in the others, to the root.
    links: BTreeMap<ProcessNumber, Outbox>,
    /// The process ID of every process.
    pub(crate) pids: BTreeMap<ProcessNumber, u32>,
    pub(crate) gone: BTreeSet<ProcessNumber>,
    /// Communicators with ranks in this process, by tag.
    pub(crate) communicators: HashMap<CommTag, CommId>,
    /// Events for communicators that this process has not created yet.
    pub(crate) early: HashMap<CommTag, Vec<(ProcessNumber, Event)>>,
    /// If another process is the root: the ranks of this process that are waiting for the communicator.
    pub(crate) members: Vec<(Rank, Member)>,
    /// When this process asked the root to give up.
    pub(crate) asked: Option<Instant>,
    /// When the first of this process's ranks joined.
    pub(crate) since: Instant,
}

/// How to reach the ranks of a communicator that are in other processes.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) session: SessionId,
    pub(crate) tag: CommTag,
    /// The other processes that have ranks in it.
    pub(crate) others: Vec<ProcessNumber>,
}

/// The messages between the root and another process about processes or about the communicator that is being created.
pub(crate) enum Control {
    /// A rank in a process other than the root joins.
    Join(JoinRequest),
    /// All ranks have joined.
    Made(Table),
    /// The communicator can't be created.
    Refused { status: NcclStatus, report: String },
    /// A rank in a process other than the root leaves before the communicator is created.
    Withdraw { status: NcclStatus, report: String },
    /// A process has waited too long for the communicator.
    GiveUp,
    /// A process or its connection has ended.
    Gone { process: ProcessNumber },
    /// A process's stream is gone, so clocks can drop it.
    Forget { stream: StreamName },
}

impl Wire for Control {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Join(request) => to.put(&0u8).put(request),
            Self::Made(table) => to.put(&1u8).put(table),
            Self::Refused { status, report } => to.put(&2u8).put(status).put(report),
            Self::Withdraw { status, report } => to.put(&3u8).put(status).put(report),
            Self::GiveUp => to.put(&4u8),
            Self::Gone { process } => to.put(&5u8).put(process),
            Self::Forget { stream } => to.put(&6u8).put(stream),
        };
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.get::<u8>()? {
            0 => Self::Join(from.get()?),
            1 => Self::Made(from.get()?),
            2 => Self::Refused { status: from.get()?, report: from.get()? },
            3 => Self::Withdraw { status: from.get()?, report: from.get()? },
            4 => Self::GiveUp,
            5 => Self::Gone { process: from.get()? },
            6 => Self::Forget { stream: from.get()? },
            _ => return None,
        })
    }
}

/// The first byte of a message between the root and another process.
const CONTROL: u8 = 0;
/// The first byte of a message about a communicator, sent to any of its processes.
const EVENT: u8 = 1;

/// An event's sender, its receivers, and the tag of its communicator.
pub(crate) struct Header {
    from: ProcessNumber,
    to: Vec<ProcessNumber>,
    tag: CommTag,
}

super::wire::structure! { Header { from, to, tag } }

impl Session {
    fn new(id: UniqueId, own: ProcessNumber, pids: BTreeMap<ProcessNumber, u32>) -> Self {
        Self {
            id,
            own,
            links: BTreeMap::new(),
            pids,
            gone: BTreeSet::new(),
            communicators: HashMap::new(),
            early: HashMap::new(),
            members: Vec::new(),
            asked: None,
            since: Instant::now(),
        }
    }

    /// Sends a message toward processes in the session.
    fn post(&self, to: &[ProcessNumber], message: Vec<u8>) {
        let message: Arc<[u8]> = message.into();
        let links = to.iter().filter_map(|process| self.links.get(process));
        match self.own {
            ROOT => links.for_each(|link| link.send(message.clone())),
            _ => self.links.values().for_each(|link| link.send(message.clone())),
        }
    }

    /// Sends a message to a process that this one is connected to.
    pub(crate) fn send_control(&self, process: ProcessNumber, control: &Control) {
        let mut writer = Writer::default();
        writer.put(&CONTROL).put(control);
        if let Some(link) = self.links.get(&process) {
            link.send(writer.finish().into());
        }
    }

    /// Returns a process's process ID.
    pub(crate) fn pid(&self, process: ProcessNumber) -> u32 {
        self.pids.get(&process).copied().unwrap_or(0)
    }
}

/// A message about a communicator. The message may be long, so it is built without holding the engine's lock.
pub(crate) struct Outgoing {
    session: SessionId,
    to: Vec<ProcessNumber>,
    bytes: Vec<u8>,
}

impl Outgoing {
    /// Creates a message to some of a link's processes.
    pub(crate) fn new(own: ProcessNumber, link: &Link, to: Vec<ProcessNumber>, event: &Event) -> Self {
        let mut writer = Writer::default();
        writer.put(&EVENT).put(&Header { from: own, to: to.clone(), tag: link.tag }).put(event);
        Self { session: link.session, to, bytes: writer.finish() }
    }
}

impl State {
    /// Returns a session that must exist, because it has a connection or because one of its communicators or bootstraps
    /// is not over.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    pub(crate) fn session(&self, session: SessionId) -> NcclResult<&Session> {
        self.sessions.get(&session).ok_or_else(|| vanished(format_args!("session {}", session.0)))
    }

    /// Like [`Self::session`], but returns a mutable reference.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    pub(crate) fn session_mut(&mut self, session: SessionId) -> NcclResult<&mut Session> {
        self.sessions.get_mut(&session).ok_or_else(|| vanished(format_args!("session {}", session.0)))
    }

    /// Sends a message. If its session has ended since the message was built, no process is waiting for the message, so
    /// it is dropped.
    pub(crate) fn send(&self, outgoing: Outgoing) {
        if let Some(session) = self.sessions.get(&outgoing.session) {
            session.post(&outgoing.to, outgoing.bytes);
        }
    }

    /// Tells all processes that streams in this process are gone.
    pub(crate) fn streams_forgotten(&self, streams: &[StreamHandle]) {
        for session in self.sessions.values() {
            for (&process, &stream) in
                session.links.keys().flat_map(|process| streams.iter().map(move |stream| (process, stream)))
            {
                session.send_control(process, &Control::Forget { stream: StreamName::own(stream) });
            }
        }
    }

    fn add_session(&mut self, session: Session) -> SessionId {
        self.sessions_made += 1;
        let number = SessionId(self.sessions_made);
        self.gathering.insert(session.id, number);
        self.sessions.insert(number, session);
        number
    }

    /// Closes the connections of a session that is no longer needed. The session is forgotten when the last connection
    /// closes.
    ///
    /// # Errors
    /// Returns `InternalError` if the session has already been forgotten.
    pub(crate) fn close_session_if_over(&mut self, number: SessionId) -> NcclResult<()> {
        let id = self.session(number)?.id;
        let gathers = self.gathering.get(&id) == Some(&number);
        let session = self.session_mut(number)?;
        let serves = session.own == ROOT && session.links.len() > 1;
        if session.communicators.is_empty() && !serves && !gathers {
            session.links.values_mut().for_each(Outbox::close);
            if session.links.is_empty() {
                self.sessions.remove(&number);
            }
        }
        Ok(())
    }

    /// Accepts another process at the root. Returns the session and the process's number in it.
    ///
    /// # Errors
    /// Returns `InternalError` if the session that the id's ranks join is gone.
    pub(crate) fn accept(
        &mut self,
        id: UniqueId,
        pid: u32,
        outbox: Outbox,
    ) -> NcclResult<(SessionId, ProcessNumber)> {
        let known = self.gathering.get(&id).copied();
        let number = known.unwrap_or_else(|| {
            let pids = [(ROOT, std::process::id())].into();
            self.add_session(Session::new(id, ROOT, pids))
        });
        let session = self.session_mut(number)?;
        let process = ProcessNumber(session.pids.len() as u16);
        session.pids.insert(process, pid);
        session.links.insert(process, outbox);
        Ok((number, process))
    }

    /// Records that this process has connected to a root. Returns the session. The root sends this process's number in
    /// it later.
    pub(crate) fn connected_to_root(&mut self, id: UniqueId, root: u32, outbox: Outbox) -> SessionId {
        let mut session = Session::new(id, ProcessNumber(u16::MAX), [(ROOT, root)].into());
        session.links.insert(ROOT, outbox);
        self.add_session(session)
    }
}

impl Nccl {
    /// Handles one message from `neighbor`.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the message is invalid.
    pub(crate) fn receive(
        &'static self,
        number: SessionId,
        neighbor: ProcessNumber,
        message: Vec<u8>,
    ) -> Result<(), Malformed> {
        let mut reader = Reader::new(&message);
        if reader.get::<u8>().ok_or(Malformed)? == CONTROL {
            let control = reader.get::<Control>().filter(|_| reader.is_at_end()).ok_or(Malformed)?;
            let mut guard = self.lock();
            EventError::reported(guard.locked().control(number, neighbor, control))?;
            self.unlock_and_wake(self.run_ready(guard));
            return Ok(());
        }
        let Header { from, to, tag } = reader.get().ok_or(Malformed)?;
        let own = self.lock().nccl.session(number).map_err(|_| Malformed)?.own;
        let (is_root, is_meant) = (own == ROOT, to.contains(&own));
        if is_root && from != neighbor {
            return Err(Malformed);
        }
        let event = match is_meant {
            true => Some(reader.get::<Event>().filter(|_| reader.is_at_end()).ok_or(Malformed)?),
            false => None,
        };
        let mut guard = self.lock();
        if is_root {
            let others: Vec<ProcessNumber> =
                to.into_iter().filter(|&process| process != ROOT && process != from).collect();
            guard.nccl.session(number).map_err(|_| Malformed)?.post(&others, message);
        }
        let job = match event {
            Some(event) => EventError::reported(guard.locked().take_in(number, from, tag, event))?,
            None => None,
        };
        if let Some(job) = job {
            drop(guard);
            guard = self.run(job);
        }
        self.unlock_and_wake(self.run_ready(guard));
        Ok(())
    }

    /// Handles the end of the connection to a process.
    pub(crate) fn lost(&'static self, number: SessionId, process: ProcessNumber) {
        let mut guard = self.lock();
        internal::report(guard.locked().lost(number, process));
        self.unlock_and_wake(self.run_ready(guard));
    }

    /// Closes all sessions before this process ends. Waits until the others have received everything that this process
    /// sent. The root also waits until the others have finished sending messages to each other. No wait is longer than
    /// the timeout.
    pub fn leave_sessions(&self) {
        let since = Instant::now();
        {
            let mut guard = self.lock();
            guard.nccl.is_leaving = true;
            for session in guard.nccl.sessions.values().filter(|session| session.own == ROOT) {
                // The other processes should not wait for this process's ranks anymore.
                let gone = Control::Gone { process: ROOT };
                session.links.keys().for_each(|&other| session.send_control(other, &gone));
            }
        }
        while self.close_sessions() && since.elapsed() < self.engine.config().timeout.duration {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Returns whether a connection is still open. Closes connections that don't forward messages between other
    /// processes.
    fn close_sessions(&self) -> bool {
        let mut guard = self.lock();
        let mut open = false;
        for session in guard.nccl.sessions.values_mut() {
            open |= !session.links.is_empty();
            if session.own != ROOT || session.links.len() < 2 {
                // The other side sees the connection end and closes its own.
                session.links.values_mut().for_each(Outbox::close);
            }
        }
        open
    }
}

impl Locked<'_> {
    /// Handles the end of the connection to a process.
    fn lost(&mut self, number: SessionId, process: ProcessNumber) -> NcclResult<()> {
        let session = self.nccl.session_mut(number)?;
        session.links.remove(&process);
        if session.own == ROOT {
            let others: Vec<ProcessNumber> = session.links.keys().copied().collect();
            others.iter().for_each(|&other| session.send_control(other, &Control::Gone { process }));
            self.process_gone(number, process)?;
        } else {
            // Messages forwarded by the root no longer arrive, so the other processes are gone, too.
            let all: Vec<ProcessNumber> =
                session.pids.keys().copied().filter(|&process| process != session.own).collect();
            let id = session.id;
            if self.nccl.gathering.get(&id) == Some(&number) {
                self.nccl.gathering.remove(&id);
            }
            self.nccl.root_gone(number, process)?;
            for process in all {
                self.process_gone(number, process)?;
            }
        }
        self.nccl.close_session_if_over(number)
    }

    /// Handles a neighbor's message about a process, or about the communicator that is being created.
    ///
    /// # Errors
    /// Returns [`EventError::Malformed`] if the message is invalid.
    fn control(
        &mut self,
        number: SessionId,
        neighbor: ProcessNumber,
        control: Control,
    ) -> Result<(), EventError> {
        let session = self.nccl.session_mut(number)?;
        let is_root = session.own == ROOT;
        let id = session.id;
        match control {
            Control::Join(request) if is_root => {
                let pid = session.pid(neighbor);
                let (size, rank) = (request.world_size, request.rank);
                self.join(id, size, rank, request.member(neighbor, pid))?;
            }
            Control::Withdraw { status, report } if is_root => {
                self.nccl.leave_bootstrap(id, &Error::new(status, report));
            }
            Control::GiveUp if is_root => self.give_up_bootstrap(id),
            Control::Made(table) if !is_root => return self.complete_elsewhere(number, table),
            Control::Refused { status, report } if !is_root => {
                self.nccl.fail_waiting_ranks(number, &Error::new(status, report))?;
            }
            Control::Gone { process } if !is_root => self.process_gone(number, process)?,
            Control::Forget { stream } => {
                if is_root {
                    let others = session.links.keys().filter(|&&process| process != neighbor);
                    others.for_each(|&process| session.send_control(process, &Control::Forget { stream }));
                }
                self.forget_foreign(stream);
            }
            _ => return Err(EventError::Malformed),
        }
        Ok(())
    }
}

impl State {
    /// Fails the ranks of this process that were waiting for the root, because the root is gone.
    fn root_gone(&mut self, number: SessionId, process: ProcessNumber) -> NcclResult<()> {
        let session = self.session(number)?;
        let message =
            format!("{} ended before the communicator was created", of_process(session.pid(process)));
        self.fail_waiting_ranks(number, &Error::new(NcclStatus::RemoteError, message))
    }
}

/// Describes a process.
pub(crate) fn of_process(pid: u32) -> String {
    match pid {
        0 => "rank 0's process".to_owned(),
        pid => format!("process {pid}"),
    }
}
