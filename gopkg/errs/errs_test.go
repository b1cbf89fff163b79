package errs

import (
	"errors"
	"fmt"
	"testing"
)

func TestErrorfIsOfItsKindAndSaysNoMoreThanItsText(t *testing.T) {
	err := ErrIndex.Errorf("index %d of %d", 5, 3)
	if err.Error() != "index 5 of 3" || !errors.Is(err, ErrIndex) || errors.Is(err, ErrBuffer) {
		t.Errorf("%v", err)
	}
	wrapped := fmt.Errorf("gather: %w", err)
	if wrapped.Error() != "gather: index 5 of 3" || CodeOf(wrapped) != ErrIndex.Code() {
		t.Errorf("%v, code %d", wrapped, CodeOf(wrapped))
	}
}
