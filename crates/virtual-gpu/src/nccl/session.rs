//! Sessions: the processes whose ranks came to one id. One of them, the host, made the id; the others, its guests, are
//! connected to it, and what they tell each other goes through it.
//!
//! Each process knows of every call of every rank, and does itself what its own ranks need for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::Event;
use super::id::UniqueId;
use super::link::Outbox;
use super::meeting::{Attendance, Member, Table};
use super::wire::{Reader, Wire, Writer};
use crate::engine::{Engine, State};
use virtual_gpu_core::status::{Error, NcclStatus};

/// The host's number in its session.
pub(super) const HOST: u16 = 0;

/// How often a process that ends looks whether others have let it go.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The tag of the communicator that is made from the id. Those that splits make have others.
pub(super) const FIRST_TAG: u64 = 0;

/// What a process knows of a session.
pub(super) struct Session {
    pub(super) id: UniqueId,
    /// This process's number.
    pub(super) own: u16,
    /// The host's to its guests, a guest's to its host.
    links: BTreeMap<u16, Outbox>,
    /// Every process's number as the system counts it.
    pub(super) pids: BTreeMap<u16, u32>,
    pub(super) gone: BTreeSet<u16>,
    /// Communicators with ranks here, by their tags.
    pub(super) cliques: HashMap<u64, u64>,
    /// What came for communicators that are not made here yet.
    pub(super) early: HashMap<u64, Vec<(u16, Event)>>,
    /// A guest's ranks that wait for the communicator.
    pub(super) members: Vec<(usize, Member)>,
    /// When a guest asked the host to give up.
    pub(super) asked: Option<Instant>,
    /// When the first of a guest's ranks came.
    pub(super) since: Instant,
}

/// Where the ranks of a communicator in other processes are reached.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) session: u64,
    pub(super) tag: u64,
    /// The processes that have ranks in it.
    pub(super) others: Vec<u16>,
}

/// What host and guests tell each other about the communicator that is made, and about processes.
pub(super) enum Control {
    /// A guest's rank comes.
    Join(Attendance),
    /// All have come.
    Made(Table),
    /// It can't be made.
    Refused { status: NcclStatus, report: String },
    /// A guest's rank leaves before it is made.
    Withdraw { status: NcclStatus, report: String },
    /// A guest has waited for too long.
    GiveUp,
    /// A process has ended, or its connection has.
    Gone { process: u16 },
    /// A stream of some process is gone: no clock need hold it any more.
    Forget { stream: (u64, u64) },
}

impl Wire for Control {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Join(attendance) => to.put(&0u8).put(attendance),
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

/// First byte of a message between neighbours.
const CONTROL: u8 = 0;
/// First byte of a message about a communicator, to any of its processes.
const EVENT: u8 = 1;

/// Where an event comes from, where it goes to, and the tag of its communicator.
pub(super) struct Envelope {
    from: u16,
    to: Vec<u16>,
    tag: u64,
}

super::wire::structure! { Envelope { from, to, tag } }

impl Session {
    fn new(id: UniqueId, own: u16, pids: BTreeMap<u16, u32>) -> Self {
        Self {
            id,
            own,
            links: BTreeMap::new(),
            pids,
            gone: BTreeSet::new(),
            cliques: HashMap::new(),
            early: HashMap::new(),
            members: Vec::new(),
            asked: None,
            since: Instant::now(),
        }
    }

    /// Sends a message on its way to processes of the session.
    fn post(&self, to: &[u16], message: Vec<u8>) {
        let message: Arc<[u8]> = message.into();
        let links = to.iter().filter_map(|process| self.links.get(process));
        match self.own {
            HOST => links.for_each(|link| link.send(message.clone())),
            _ => self.links.values().for_each(|link| link.send(message.clone())),
        }
    }

    /// Tells a neighbour.
    pub(super) fn tell(&self, process: u16, control: &Control) {
        let mut writer = Writer::default();
        writer.put(&CONTROL).put(control);
        if let Some(link) = self.links.get(&process) {
            link.send(writer.finish().into());
        }
    }

    /// The number of a process as the system counts it.
    pub(super) fn pid(&self, process: u16) -> u32 {
        self.pids.get(&process).copied().unwrap_or(0)
    }
}

/// A message about a communicator. It may be long: it is made without the engine's lock.
pub(super) struct Parcel {
    session: u64,
    to: Vec<u16>,
    bytes: Vec<u8>,
}

impl Parcel {
    /// To some of the processes that a link leads to.
    pub(super) fn new(own: u16, link: &Link, to: Vec<u16>, event: &Event) -> Self {
        let mut writer = Writer::default();
        writer.put(&EVENT).put(&Envelope { from: own, to: to.clone(), tag: link.tag }).put(event);
        Self { session: link.session, to, bytes: writer.finish() }
    }
}

impl super::Nccl {
    pub(super) fn session(&self, session: u64) -> Option<&Session> {
        self.sessions.get(&session)
    }

    pub(super) fn send(&self, parcel: Parcel) {
        if let Some(session) = self.sessions.get(&parcel.session) {
            session.post(&parcel.to, parcel.bytes);
        }
    }

    /// Tells every process that a stream is gone.
    pub(super) fn tell_forgotten(&self, stream: (u64, u64)) {
        for session in self.sessions.values() {
            session.links.keys().for_each(|&process| session.tell(process, &Control::Forget { stream }));
        }
    }

    fn add_session(&mut self, session: Session) -> u64 {
        self.made_sessions += 1;
        self.gathering.insert(session.id, self.made_sessions);
        self.sessions.insert(self.made_sessions, session);
        self.made_sessions
    }

    /// Ends the connections of a session that nobody needs any more; it is forgotten with the last of them.
    pub(super) fn close_session_if_over(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let serves = session.own == HOST && session.links.len() > 1;
        let gathers = self.gathering.get(&session.id) == Some(&number);
        if !session.cliques.is_empty() || serves || gathers {
            return;
        }
        session.links.values_mut().for_each(Outbox::close);
        if session.links.is_empty() {
            self.sessions.remove(&number);
        }
    }
}

impl State {
    /// A guest has come to the host; its session and its number there.
    pub(super) fn admit(&mut self, id: UniqueId, pid: u32, outbox: Outbox) -> (u64, u16) {
        let known = self.nccl.gathering.get(&id).copied();
        let number = known.unwrap_or_else(|| {
            let pids = [(HOST, std::process::id())].into();
            self.nccl.add_session(Session::new(id, HOST, pids))
        });
        let process = match self.nccl.sessions.get_mut(&number) {
            Some(session) => {
                let process = session.pids.len() as u16;
                session.pids.insert(process, pid);
                session.links.insert(process, outbox);
                process
            }
            None => HOST,
        };
        (number, process)
    }

    /// This process has come to a host as a guest; the session. Which number it has there, the host tells later.
    pub(super) fn visit(&mut self, id: UniqueId, host: u32, outbox: Outbox) -> u64 {
        let mut session = Session::new(id, u16::MAX, [(HOST, host)].into());
        session.links.insert(HOST, outbox);
        self.nccl.add_session(session)
    }
}

impl Engine {
    /// Takes in one message of `neighbour`. `None` where it makes no sense.
    pub(super) fn receive(&'static self, number: u64, neighbour: u16, message: Vec<u8>) -> Option<()> {
        let mut reader = Reader::new(&message);
        if reader.get::<u8>()? == CONTROL {
            let control = reader.get::<Control>().filter(|_| reader.is_at_end())?;
            let mut state = self.state();
            state.control(number, neighbour, control)?;
            drop(self.run_ready(state));
            self.wake_all();
            return Some(());
        }
        let Envelope { from, to, tag } = reader.get()?;
        let own = self.state().nccl.session(number)?.own;
        let (is_host, is_meant) = (own == HOST, to.contains(&own));
        if is_host && from != neighbour {
            return None;
        }
        let event = match is_meant {
            true => Some(reader.get::<Event>().filter(|_| reader.is_at_end())?),
            false => None,
        };
        let mut state = self.state();
        if is_host {
            let others: Vec<u16> =
                to.into_iter().filter(|&process| process != HOST && process != from).collect();
            state.nccl.session(number)?.post(&others, message);
        }
        let job = match event {
            Some(event) => state.take_in(number, from, tag, event)?,
            None => None,
        };
        if let Some(job) = job {
            drop(state);
            state = self.run_nccl(job);
        }
        drop(self.run_ready(state));
        self.wake_all();
        Some(())
    }

    /// The connection to a process has ended.
    pub(super) fn lost(&'static self, number: u64, process: u16) {
        let mut state = self.state();
        let Some(session) = state.nccl.sessions.get_mut(&number) else { return };
        session.links.remove(&process);
        if session.own == HOST {
            let others: Vec<u16> = session.links.keys().copied().collect();
            others.iter().for_each(|&other| session.tell(other, &Control::Gone { process }));
            state.process_gone(number, process);
        } else {
            // What came through the host comes no more.
            let all: Vec<u16> =
                session.pids.keys().copied().filter(|&process| process != session.own).collect();
            let id = session.id;
            if state.nccl.gathering.get(&id) == Some(&number) {
                state.nccl.gathering.remove(&id);
            }
            state.refuse_guests(number, process);
            for process in all {
                state.process_gone(number, process);
            }
        }
        state.nccl.close_session_if_over(number);
        drop(self.run_ready(state));
        self.wake_all();
    }

    /// The process ends: waits until others have what they were sent, and, where they speak through this one, until they have
    /// said all. No longer than patience.
    pub fn leave_sessions(&self) {
        let since = Instant::now();
        {
            let mut state = self.state();
            state.nccl.is_leaving = true;
            for session in state.nccl.sessions.values().filter(|session| session.own == HOST) {
                // They don't wait for its ranks any more.
                let gone = Control::Gone { process: HOST };
                session.links.keys().for_each(|&guest| session.tell(guest, &gone));
            }
        }
        while self.close_sessions() && since.elapsed() < self.config().patience {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Whether a connection is still open. Those through which nobody else speaks are told to close.
    fn close_sessions(&self) -> bool {
        let mut state = self.state();
        let mut open = false;
        for session in state.nccl.sessions.values_mut() {
            open |= !session.links.is_empty();
            if session.own != HOST || session.links.len() < 2 {
                // The other side sees the end, and closes its own.
                session.links.values_mut().for_each(Outbox::close);
            }
        }
        open
    }
}

impl State {
    /// What a neighbour says about the communicator that is made, or about a process.
    fn control(&mut self, number: u64, neighbour: u16, control: Control) -> Option<()> {
        let session = self.nccl.sessions.get_mut(&number)?;
        let is_host = session.own == HOST;
        let id = session.id;
        match control {
            Control::Join(attendance) if is_host => {
                let pid = session.pid(neighbour);
                let (size, rank) = (attendance.world_size, attendance.rank);
                self.join(id, size, rank, attendance.member(neighbour, pid));
            }
            Control::Withdraw { status, report } if is_host => {
                self.leave_meeting(id, &Error::new(status, report));
            }
            Control::GiveUp if is_host => self.give_up_meeting(id),
            Control::Made(table) if !is_host => return self.meet_elsewhere(number, table),
            Control::Refused { status, report } if !is_host => {
                self.fail_guests(number, &Error::new(status, report));
            }
            Control::Gone { process } if !is_host => self.process_gone(number, process),
            Control::Forget { stream } => {
                if is_host {
                    let others = session.links.keys().filter(|&&process| process != neighbour);
                    others.for_each(|&process| session.tell(process, &Control::Forget { stream }));
                }
                self.forget_foreign(stream);
            }
            _ => return None,
        }
        Some(())
    }

    /// Everyone here who waited for the host is told that it has gone.
    fn refuse_guests(&mut self, number: u64, process: u16) {
        let Some(session) = self.nccl.sessions.get(&number) else { return };
        let message = format!("{} ended before the communicator was made", of_process(session.pid(process)));
        self.fail_guests(number, &Error::new(NcclStatus::RemoteError, message));
    }
}

/// A process in words.
pub(super) fn of_process(pid: u32) -> String {
    match pid {
        0 => "the process of rank 0".to_owned(),
        pid => format!("process {pid}"),
    }
}
