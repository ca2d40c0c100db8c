//! Tests of a body's memory.

use super::*;

fn all(body: &Body) -> Vec<u8> {
    (0..)
        .map_while(|index| body.piece(index))
        .flatten()
        .collect()
}

fn sized(budget: &Rc<Budget>, length: usize) -> Result<Body, Error> {
    let mut body = Body::new(budget);
    body.push(&vec![7; length], length)?;
    body.finish();
    Ok(body)
}

#[test]
fn past_half_of_the_memory_the_largest_sent_body_goes_first() {
    let budget = Budget::new(1_000_000);
    let (small, large, unsent) = (
        sized(&budget, 100_000).unwrap(),
        sized(&budget, 200_000).unwrap(),
        sized(&budget, 150_000).unwrap(),
    );
    small.end_send();
    large.end_send();
    let next = sized(&budget, 50_000).unwrap();
    assert!(large.is_whole(), "half of the memory holds them all");
    let another = sized(&budget, 50_000).unwrap();
    assert!(!large.is_whole());
    assert!(all(&large).is_empty());
    assert!(small.is_whole() && unsent.is_whole());
    assert_eq!(budget.used(), 350_000);
    drop((small, large, unsent, next, another));
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_still_has_to_be_sent_is_never_let_go() {
    let budget = Budget::new(400_000);
    let sent = sized(&budget, 190_000).unwrap();
    sent.end_send();
    sent.begin_send();
    let second = sized(&budget, 190_000).unwrap();
    assert!(sent.is_whole());
    assert_eq!(sized(&budget, 190_000).err(), Some(Error::OutOfBuffers));
    sent.end_send();
    assert!(sized(&budget, 190_000).is_ok());
    assert!(!sent.is_whole());
    assert!(second.is_whole());
}

#[test]
fn pieces_hold_all_bytes_in_order() {
    let budget = Budget::new(1_000_000);
    let mut body = Body::new(&budget);
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    for part in bytes.chunks(7_001) {
        body.push(part, 0).unwrap();
    }
    body.finish();
    assert_eq!(body.len(), bytes.len());
    assert_eq!(all(&body), bytes);
}

#[test]
fn d08_memory_is_taken_for_what_came_not_for_what_was_claimed() {
    let budget = Budget::new(100_000_000);
    let mut body = Body::new(&budget);
    body.push(b"{", 30_000_000).unwrap();
    assert_eq!(budget.used(), LEAST);
    let mut small = Body::new(&budget);
    small.push(b"{", 41).unwrap();
    assert_eq!(budget.used(), LEAST + 41);
    drop(small);
    let mut most = 0;
    for _ in 0..1_000 {
        body.push(&[7; 1_000], 29_000_000).unwrap();
        most = most.max(budget.used() - body.len());
    }
    assert!(most <= PIECE, "{most} bytes more than arrived");
}

/// Reads `arrived` bytes of the `left` that are to come; says where the first of them went, and how
/// many there was room for.
fn read(body: &mut Body, arrived: usize, left: usize) -> (*const u8, usize) {
    let mut lent = body.lend(left);
    let piece = lent.piece();
    let count = arrived.min(piece.capacity() - piece.len());
    piece.extend_from_slice(&vec![7; count]);
    let address = lent.read().as_ptr();
    body.take_back(lent, left).unwrap();
    (address, count)
}

#[test]
fn a_read_that_fills_its_piece_is_not_copied_and_the_piece_is_used_again() {
    let budget = Budget::new(10_000_000);
    let mut body = Body::new(&budget);
    body.push(b"ab", 2).unwrap();
    let (address, _) = read(&mut body, PIECE / 2 + 1, PIECE);
    assert_eq!(budget.used(), 2 + PIECE);
    // The rest of the piece is read into, and nothing more is counted for it.
    let (behind, _) = read(&mut body, PIECE / 2 - 1, PIECE / 2);
    assert_eq!(behind, address.wrapping_add(PIECE / 2 + 1));
    assert_eq!(budget.used(), 2 + PIECE);
    body.push(b"c", 1).unwrap();
    body.finish();
    assert_eq!(body.len(), PIECE + 3);
    let bytes = all(&body);
    assert!(bytes.starts_with(b"ab\x07") && bytes.ends_with(b"\x07c"));
    assert_eq!(bytes.len(), body.len());
    assert_eq!(body.piece(1).unwrap().as_ptr(), address);
    let held = body.piece(1).unwrap();
    drop(body);
    assert_eq!(budget.used(), 0);
    assert_ne!(budget.blank().as_ptr(), address, "it is still held");
    drop(held);

    let mut body = Body::new(&budget);
    let (address, _) = read(&mut body, PIECE, PIECE);
    body.finish();
    body.let_go();
    let again = budget.blank();
    assert_eq!((again.as_ptr(), again.len()), (address, 0));
    assert_eq!(again.capacity(), PIECE);
}

#[test]
fn a_read_of_half_a_piece_is_copied_and_one_of_nothing_costs_nothing() {
    let budget = Budget::new(10_000_000);
    let mut body = Body::new(&budget);
    let (blank, _) = read(&mut body, PIECE / 2, PIECE / 2);
    assert_eq!(budget.used(), PIECE / 2);
    let lent = body.lend(PIECE);
    assert!(lent.read().is_empty());
    body.return_unread(lent);
    body.finish();
    assert_eq!((body.len(), budget.used()), (PIECE / 2, PIECE / 2));
    assert_ne!(body.piece(0).unwrap().as_ptr(), blank);
    // What is lent of a piece that holds something comes back with it.
    let mut body = Body::new(&budget);
    read(&mut body, PIECE - WORTH_A_READ, PIECE);
    let lent = body.lend(WORTH_A_READ);
    body.return_unread(lent);
    body.finish();
    assert_eq!(all(&body), vec![7; PIECE - WORTH_A_READ]);
}

#[test]
fn f05_a_body_in_parts_of_any_size_holds_little_more_than_its_bytes() {
    const LENGTH: usize = 4_000_000;
    for part in [
        1,
        1_448,
        LEAST,
        PIECE / 4,
        PIECE / 2,
        PIECE / 2 + 1,
        PIECE * 3 / 4,
        PIECE,
    ] {
        let budget = Budget::new(10 * LENGTH);
        let mut body = Body::new(&budget);
        // Bytes that one by one would take long come one by one only at first.
        let mut come = |part: usize, until: usize| {
            while body.len() < until {
                let left = LENGTH - body.len();
                read(&mut body, part.min(left), left);
                let most = body.len() + body.len() / 7 + PIECE;
                assert!(
                    budget.used() <= most,
                    "{} for {}",
                    budget.used(),
                    body.len()
                );
            }
        };
        come(part, if part < LEAST { PIECE * 3 } else { LENGTH });
        come(PIECE, LENGTH);
        body.finish();
        assert_eq!(body.len(), LENGTH);
        assert_eq!(all(&body), vec![7; LENGTH]);
        drop(body);
        assert_eq!(budget.used(), 0);
    }
}

#[test]
fn spare_pieces_never_take_memory_from_bodies() {
    let budget = Budget::new(8 * PIECE);
    let pieces: Vec<BytesMut> = (0..8).map(|_| budget.blank()).collect();
    pieces.into_iter().for_each(|piece| budget.keep(piece));
    assert_eq!(budget.spare.borrow().len(), 4, "half of the memory");
    let body = sized(&budget, 1).unwrap();
    assert_eq!(budget.spare.borrow().len(), 0);
    budget.keep(budget.blank());
    assert_eq!(budget.spare.borrow().len(), 1);
    drop(body);
    let large = Budget::new(1 << 30);
    let pieces: Vec<BytesMut> = (0..SPARE + 1).map(|_| large.blank()).collect();
    pieces.into_iter().for_each(|piece| large.keep(piece));
    assert_eq!(large.spare.borrow().len(), SPARE);
}

#[test]
fn memory_comes_back_when_the_body_goes() {
    let budget = Budget::new(100);
    let mut body = Body::new(&budget);
    body.push(&[0; 60], 60).unwrap();
    assert_eq!(budget.used(), 60);
    let mut second = Body::new(&budget);
    assert_eq!(second.push(&[0; 41], 41), Err(Error::OutOfBuffers));
    drop(body);
    assert_eq!(budget.used(), 0);
    second.push(&[0; 41], 41).unwrap();
    assert_eq!(budget.used(), 41);
}
