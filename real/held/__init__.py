"""What all processes that alone hold an arm share: the topics of the arm in front of them."""
